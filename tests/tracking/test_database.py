"""The address of the database."""

import pytest

from tracking.database import Database


@pytest.mark.parametrize("password", ["p@ss/w", "p@ss", "pa/ss", "pa?ss", "pa#ss@", "pa?s@s/"])
def test_a_password_must_be_encoded_and_is_not_told(password):
    with pytest.raises(ValueError, match="must have user and password percent-encoded") as error:
        Database(f"mongodb://trainer:{password}@127.0.0.1/sacred")
    assert password not in str(error.value)


def test_an_encoded_password_is_taken():
    with Database("mongodb://trainer:p%40ss%2Fw@127.0.0.1/sacred?authSource=sacred") as database:
        assert database.name == "127.0.0.1:27017/sacred"
