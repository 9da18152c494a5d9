"""What is asked about jobs past and present, and what is answered: by the brain that runs, or out of its files.

Rows come as they are stored: their JSON is understood by whoever asks, since another version may have written it. A long answer comes in
pages, each with the place from which the next one goes on. News come with how far they go, and go on from there.
"""

from __future__ import annotations

import msgspec

from dlrover_lite.core.bounds import Blob, Count, Items, Json, Name, Number, Rate, Row, Seconds, Text, Timestamp, Url
from dlrover_lite.protocol.news import WatchedJob, WatchedJobs
from dlrover_lite.transport.message import Message

LATEST = 1e12
"""The latest time there is, in seconds since the epoch."""

Place = Row[Number | Name]
"""Place of a row in the order of its kind: the values that rows are ordered by."""


# --- rows, as they are stored ------------------------------------------------------------------------------------------------


class _Kept(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class KeptJob(_Kept, frozen=True):
    id: Name
    name: Name
    owner: Name
    model: Url
    state: Name
    priority: Rate
    created_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None
    samples: Count
    message: Text
    directory: Url
    source: Name
    outcome: Json
    features: Json
    plan: Json | None
    """The newest plan that the job was given."""


class KeptJobId(_Kept, frozen=True):
    created_at: Timestamp
    id: Name


class KeptPlan(_Kept, frozen=True):
    id: Count
    job: Name
    at: Timestamp
    kind: Name
    decision: Count | None
    data: Json


class KeptProfile(_Kept, frozen=True):
    job: Name
    at: Timestamp
    seconds: Seconds
    samples_per_second: Rate
    workers: Count
    servers: Count
    data: Json


class KeptDecision(_Kept, frozen=True):
    number: Count
    round: Count
    data: Json
    effect: Json | None
    done: Json | None


class KeptEffect(_Kept, frozen=True):
    """What a decision has brought."""

    id: Count
    job: Name
    number: Count
    at: Timestamp
    """Time of the decision."""
    action: Name
    predicted: Json
    """Predicted throughput: expected, lower and upper end of the band, in samples/s."""
    effect: Json


class KeptEvent(_Kept, frozen=True):
    id: Count
    job: Name
    at: Timestamp
    node: Name
    event: Name
    reason: Text
    data: Json


class KeptFit(_Kept, frozen=True):
    job: Name
    at: Timestamp
    kind: Name
    error: Number
    windows: Count
    data: Json


class KeptFittedJob(_Kept, frozen=True):
    job: KeptJob
    fit: KeptFit


KeptRow = KeptJob | KeptJobId | KeptPlan | KeptProfile | KeptDecision | KeptEffect | KeptEvent | KeptFittedJob


# --- questions for rows, and pages of them -----------------------------------------------------------------------------------


class _Paged(Message, frozen=True, kw_only=True):
    """Which rows of a kind are there, the newest first? Answer RowsPage."""

    most: Count | None = None
    """Number of rows at most."""
    after: Place | None = None
    """Place of the last row that was told; None: none was."""


class JobsQuestion(_Paged, frozen=True, kw_only=True):
    """Which jobs match? All conditions must hold. Patterns are globs (``ads-*``); "" is any."""

    id: Name = ""
    name: Name = ""
    owner: Name = ""
    model: Name = ""
    state: Name = ""
    """Several states, separated by commas."""
    since: Number | None = None
    """Time at or after which the jobs were created."""
    until: Number | None = None
    text: Row[Name] = ()
    """Words of which each is somewhere in id, name, owner, model, state, message or features, whatever the case."""


class JobIdsQuestion(_Paged, frozen=True):
    """What are the ids of all jobs?"""


class PlansQuestion(_Paged, frozen=True):
    """What plans has the job had?"""

    job: Name
    kind: Name = ""
    """Kind of the plans, desired or granted; empty: both."""


class ProfilesQuestion(_Paged, frozen=True):
    """Which profiles of the job are of these times?"""

    job: Name
    since: Timestamp = 0.0
    until: Timestamp = LATEST


class DecisionsQuestion(_Paged, frozen=True):
    """Which decisions were made for the job?"""

    job: Name
    number: Count | None = None
    """Number of the only decision to tell; None: all."""


class EffectsQuestion(_Paged, frozen=True):
    """What have decisions brought, of this job or of all?"""

    job: Name = ""


class EventsQuestion(_Paged, frozen=True):
    """What has happened to the job's nodes?"""

    job: Name


class FittedJobsQuestion(_Paged, frozen=True):
    """Which jobs have a fit of this kind, and which is the newest?"""

    kind: Name


class RowsPage(Message, frozen=True):
    rows: Items[KeptRow]
    next: Place | None = None
    """Place after which the next page begins; None: there is none."""


class InputsQuestion(Message, frozen=True):
    """What were the decisions of this round made from? Answer KeptInputs."""

    round: Count


class KeptInputs(Message, frozen=True):
    inputs: Blob | None = None
    """Inputs as ``ConfigStore`` packs them; None: they were pruned."""
    kind: Name = ""


# --- news --------------------------------------------------------------------------------------------------------------------


class JobsSeen(msgspec.Struct, frozen=True, array_like=True):
    """How far the news of all jobs have been told."""

    source: Name = ""
    """Who has told them. Somebody else begins anew; empty: nobody has."""
    first: Name | None = ""
    """Id of the job that was told last, while all jobs are told for the first time; None: that is over."""
    version: Count = 0
    """Number of the newest change of a job."""
    rates: Count = 0
    plans: Count = 0
    decisions: Count = 0
    """Number, in its table, of the newest decision; as ``rates`` and ``plans`` for these."""


class JobsNewsQuestion(Message, frozen=True):
    """What is new of all jobs since then? Answer JobsNewsPage."""

    seen: JobsSeen = JobsSeen()


class JobsNewsPage(Message, frozen=True):
    news: WatchedJobs
    seen: JobsSeen
    more: bool
    """There is more to be told at once."""


class JobSeen(msgspec.Struct, frozen=True, array_like=True):
    """How far the news of one job have been told."""

    source: Name = ""
    """Who has told them. Somebody else begins anew; empty: nobody has."""
    moment: Count = 0
    """Number of the last change of the database that has been told in full."""
    rate: Timestamp = 0.0
    """Time of the newest interval."""
    plan: Count = 0
    event: Count = 0
    """Number, in its table, of the newest node event; as ``plan`` for plans."""
    decisions: Row[tuple[Count, bool, bool]] = ()
    """Number of each decision that was told, whether its effect was known, and what became of it."""


class JobNewsQuestion(Message, frozen=True):
    """What is new of the job since then? Answer JobNewsPage."""

    job: Name
    seen: JobSeen = JobSeen()


class JobNewsPage(Message, frozen=True):
    news: WatchedJob
    seen: JobSeen
    more: bool
    """There is more to be told at once."""


PagedQuestion = (
    JobsQuestion
    | JobIdsQuestion
    | PlansQuestion
    | ProfilesQuestion
    | DecisionsQuestion
    | EffectsQuestion
    | EventsQuestion
    | FittedJobsQuestion
)
RowsQuestion = PagedQuestion | InputsQuestion
HistoryQuestion = RowsQuestion | JobsNewsQuestion | JobNewsQuestion
HistoryAnswer = RowsPage | KeptInputs | JobsNewsPage | JobNewsPage
