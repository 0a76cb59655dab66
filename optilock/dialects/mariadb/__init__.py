"""MariaDB and MySQL: their answers, their statement for many rows, triggers and roll-out."""

from optilock.dialects.mariadb.database import MariaDB as MariaDB
