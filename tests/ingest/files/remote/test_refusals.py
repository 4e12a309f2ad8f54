"""Errors for the user from exceptions of clients, real ones if the client is installed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, StoreError
from tb_perfadvisor.ingest.files.access import list_tree
from tb_perfadvisor.ingest.files.remote.store import explain
from tests.support.object_stores import ObjectStore, gcs_error, s3_error


def refusal(url: str) -> PerfAdvisorError:
    with pytest.raises(PerfAdvisorError) as caught:
        list_tree(url, lambda path: True)
    assert caught.value.where == url
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "message", "hint"),
    [
        (403, "AccessDenied", "do not allow to list", "Grant s3:ListBucket"),
        (403, "InvalidAccessKeyId", "does not accept the credentials (Invalid", "aws configure"),
        (403, "SignatureDoesNotMatch", "does not accept the credentials", "aws sso login"),
        (400, "ExpiredToken", "does not accept the credentials (ExpiredToken)", "aws sso login"),
        (503, "SlowDown", "is too busy", "Try again in a minute."),
        (404, "NoSuchBucket", "there is no such bucket", "AWS_ENDPOINT_URL"),
        (500, "InternalError", "the store failed (InternalError", "Try again."),
    ],
)
def test_s3(s3: ObjectStore, status: int, code: str, message: str, hint: str) -> None:
    s3.misbehave(lambda asked: s3_error(status, code))
    error = refusal("s3://bucket/logs")
    assert message in error.message
    assert hint in error.hint
    assert isinstance(error, NothingFoundError if status == 404 else StoreError)


def test_another_region_is_named(s3: ObjectStore) -> None:
    words = "The authorization header is malformed; the region 'us-east-1' is wrong; expecting "
    answer = s3_error(400, "AuthorizationHeaderMalformed", words + "'eu-west-1'")
    s3.misbehave(lambda asked: answer)
    error = refusal("s3://bucket/logs")
    assert error.message == "the bucket is in another region than the one that is set."
    assert error.hint == "Set AWS_DEFAULT_REGION=eu-west-1."


@pytest.mark.parametrize(
    ("status", "words", "message", "hint"),
    [
        (
            403,
            "a@b.iam.gserviceaccount.com does not have storage.objects.list access.",
            "do not allow to list",
            "roles/storage.objectViewer",
        ),
        (
            401,
            "Anonymous caller does not have storage.objects.list access.",
            "wants credentials, and there are none",
            "gcloud auth application-default login",
        ),
        (
            400,
            "Bucket is a requester pays bucket but no user project provided.",
            "whose requester pays",
            "FSSPEC_GS_REQUESTER_PAYS",
        ),
        (404, "The specified bucket does not exist.", "no such bucket", "Check its name."),
    ],
)
def test_google(
    gcs: ObjectStore,
    capfd: pytest.CaptureFixture[str],
    status: int,
    words: str,
    message: str,
    hint: str,
) -> None:
    gcs.misbehave(lambda asked: gcs_error(status, words))
    error = refusal("gs://bucket/logs")
    assert message in error.message
    assert hint in error.hint
    # gcsfs logs a traceback for each exception.
    assert capfd.readouterr().err == ""


def made(name: str, message: str = "", **attributes: Any) -> Exception:
    """An exception like that of a client, which need not be installed."""
    error: Exception = type(name, (Exception,), {})(message)
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


@pytest.mark.parametrize(
    ("scheme", "error", "message"),
    [
        ("s3", made("NoCredentialsError"), "wants credentials, and there are none"),
        ("gs", made("DefaultCredentialsError"), "wants credentials, and there are none"),
        ("gs", made("RefreshError"), "does not accept the credentials (RefreshError)"),
        ("gs", made("HttpError", code=401), "does not accept the credentials (401)"),
        ("s3", made("UnauthorizedSSOTokenError"), "does not accept the credentials"),
        ("s3", made("EndpointConnectionError"), "cannot be reached"),
        ("abfs", asyncio.TimeoutError(), "cannot be reached"),
        ("sftp", ConnectionRefusedError(111, "refused"), "cannot be reached"),
        ("https", made("ClientResponseError", status=403), "do not allow to read"),
        ("sftp", PermissionError(13, "denied"), "do not allow to read"),
        ("s3", made("ClientPayloadError"), "the transfer broke off"),
        ("s3", FileNotFoundError("x"), "no longer there"),
        ("abfs", made("ClientAuthenticationError"), "(ClientAuthenticationError)"),
        ("s3", OSError(28, "No space left on device"), "no room for the file"),
    ],
)
def test_other_stores(scheme: str, error: Exception, message: str) -> None:
    explained = explain(error, scheme, where="a.json")
    assert message in explained.message
    assert (explained.where, explained.hint != "") == ("a.json", True)


def test_no_network(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    try:
        error = refusal("s3://bucket/logs")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
    assert error.message == "the store cannot be reached."
    assert error.hint == "Check the network, the proxy and, if it is set, AWS_ENDPOINT_URL."


def test_public_buckets_need_no_credentials(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    from tb_perfadvisor.ingest.files.remote import store as store_module

    monkeypatch.setattr(store_module, "_public", set())
    s3.put("bucket", "logs/a.json", b"x")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        tree = list_tree("s3://bucket/logs", lambda path: True)
        assert [entry.path for entry in tree.entries] == ["a.json"]
        assert s3.asked() == ["LIST logs/"]
        s3.misbehave(lambda asked: s3_error(403, "AccessDenied"))
        # A bucket known as public is read anonymously; a private one requires credentials.
        assert "do not allow to list" in refusal("s3://bucket/logs").message
        assert "there are none" in refusal("s3://private/logs").message
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
