"""Where published versions are uploaded to, beside the storage."""

from typing import Annotated

from pydantic import Field

from jobs.spec.base import Items, SpecModel

HUB_TOKEN = "HF_TOKEN"
"""Environment variable with the token of the Hub."""
PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
RepositoryId = Annotated[str, Field(pattern=rf"^{PART}/{PART}$")]
"""Namespace and name on the Hugging Face Hub, such as `my-team/reviews`."""


class PublishSpec(SpecModel):
    """A repository on the Hugging Face Hub for the versions of the job's model."""

    hub: RepositoryId
    """Repository such as `my-team/reviews`, which is made if it is not there. Its token is that of
    HF_TOKEN, else of the Hub's own login."""
    private: bool = True
    """Whether the repository is for its members alone. An existing repository is not changed: a
    public one is refused unless this is false."""
    license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the weights on the model card, such as `apache-2.0`."""
    language: Items[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]] = ()
    """Languages of the data on the model card, by their ISO codes such as `en`."""
