"""What is the client's fault, and what is not."""

from serving.server.errors import ApiError, failed, refused


def test_what_the_engine_does_not_take_is_told_in_the_clients_words():
    error = refused(ValueError("max_new_tokens must be above 0; got 0."), {"max_new_tokens": "n"})
    assert error.status == 400
    assert error.body()["error"]["message"] == "n must be above 0; got 0."
    assert error.body()["error"]["param"] == "n"


def test_a_failure_is_never_the_clients_fault_and_its_details_stay_here(caplog):
    for cause in (ValueError("secret"), RuntimeError("secret")):
        error = failed(cause)
        assert error.status == 500 and error.body()["error"]["type"] == "server_error"
        assert "secret" not in str(error) and "Its log says more." in str(error)
        assert caplog.records[-1].exc_info[1] is cause
    late = ApiError(504, "too late")
    assert failed(late) is late
