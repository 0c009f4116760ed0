"""AWS: clients, their errors, stack outputs and secrets. The only module of the command that imports boto3."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from grantwire_cli.errors import AccessError, CommandError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL = "Install the extra: pip install 'grantwire-cli[aws]'."
WRONG_STACK = "Check the stack's name, --region and AWS_PROFILE."
DENIED = {"AccessDenied", "ExpiredToken", "InvalidClientTokenId", "UnrecognizedClientException"}


def client(service: str, region: str) -> Any:
    """Return a boto3 client with the user's own AWS configuration.

    Raises CommandError if boto3 is not installed or no region is set.
    """
    try:
        import boto3  # noqa: PLC0415  # an optional package
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415
    except ImportError as error:
        raise CommandError("AWS needs boto3.", hint=INSTALL, code="MISSING_EXTRA") from error
    create: Any = boto3.client
    try:
        return create(service, region_name=region or None)
    except BotoCoreError as error:
        raise CommandError(f"AWS: {error}.", hint="Set --region or AWS_DEFAULT_REGION.") from error


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Translate the errors of boto3 into AccessError, UnavailableError or CommandError, with the words of AWS."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415

    try:
        yield
    except NoCredentialsError as error:
        hint = "Sign in, or set AWS_PROFILE or the access keys."
        raise AccessError("AWS: no credentials.", hint=hint, code="NO_CREDENTIALS") from error
    except ClientError as error:
        code = error.response["Error"]["Code"]
        failure = AccessError if code in DENIED else CommandError
        raise failure(f"AWS: {error.response['Error']['Message']}", hint=WRONG_STACK, code=code) from error
    except BotoCoreError as error:
        raise UnavailableError(f"AWS: {error}") from error


def read_secret(manager: Any, arn: str) -> tuple[str, str]:
    """Return the text of a secret and an empty code, or no text and the code of the error."""
    from botocore.exceptions import ClientError  # noqa: PLC0415

    try:
        return str(manager.get_secret_value(SecretId=arn).get("SecretString", "")), ""
    except ClientError as error:
        return "", str(error.response["Error"]["Code"])


def stack_outputs(name: str, region: str) -> dict[str, str]:
    """Return the outputs of a stack."""
    cloudformation = client("cloudformation", region)
    with reported_errors():
        result = cloudformation.describe_stacks(StackName=name)
    return {output["OutputKey"]: output["OutputValue"] for output in result["Stacks"][0].get("Outputs", [])}


def api_url(name: str, region: str) -> str:
    """Return the address of the API in a stack's outputs.

    Raises CommandError if the stack has no such output.
    """
    outputs = stack_outputs(name, region)
    if "ApiUrl" not in outputs:
        raise CommandError(f"The stack {name} has no output ApiUrl; is it a stack of Grantwire?", code="NO_OUTPUT")
    return outputs["ApiUrl"]
