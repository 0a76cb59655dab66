"""WTForms and Flask-WTF: a form of theirs that shows a form of optilock.

::

    class EventForm(SeenForm, FlaskForm):
        name = StringField()
        day = DateField()

    form = EventForm.of(event_form.of(event))           # to show
    if form.validate_on_submit():
        again = event_form.save(db.session, key, request.form)
        if again is not None:
            return render_template("event.html", form=EventForm.of(again)), again.status

A form of WTForms that is made in a POST shows what was sent, also with ``data=`` or ``obj=``: old
fields next to a new ``seen``. :meth:`SeenForm.of` shows the texts of the new form and its ``seen``,
and at each field what both users have changed.
"""

from __future__ import annotations

from typing import Any, Self

from optilock.errors.base import extra
from optilock.preconditions import FilledForm

with extra("wtforms"):
    from wtforms import Form, HiddenField

__all__ = ["SeenForm"]


class _Fields(dict[str, list[str]]):
    """The texts of fields, as WTForms reads those of a request."""

    def getlist(self, name: str) -> list[str]:
        return self[name]


class SeenForm(Form):  # type: ignore[misc]
    """A mixin for forms of WTForms, before their own class: the hidden field and the sentences."""

    seen = HiddenField()

    @classmethod
    def of(cls, filled: FilledForm, **options: Any) -> Self:
        """Return a form of this class that shows a form of optilock.

        Fields that both users have changed, or that cannot be read, have a sentence in ``errors``.
        """
        single = {name: [text] for name, text in filled.texts.items()}
        made = cls(formdata=_Fields({**single, **filled.lists, "seen": [filled.seen]}), **options)
        for name, sentence in filled.sentences.items():
            if name in made:
                made[name].errors = [*made[name].errors, sentence]
        return made
