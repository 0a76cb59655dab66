"""What tests of several folders share: models, fixtures, second writers and servers."""
