"""What is asked about jobs past and present, and what is answered: by the brain that runs, or out of its files.

Rows come as they are stored: their JSON is understood by whoever asks, since another version may have written it. A long answer comes in
pages, each with the question that the next one answers. News come with how far they go, and go on from there.
"""

from __future__ import annotations

import msgspec

from dlrover_lite.core.bounds import Blob, Count, Items, Json, Name, Number, Rate, Row, Seconds, Text, Timestamp, Url
from dlrover_lite.protocol.news import WatchedJob, WatchedJobs
from dlrover_lite.transport.message import Message

LATEST = 1e12
"""The latest time there is, in seconds since the epoch."""

JobPlace = tuple[Timestamp, Name]
"""Place of a job in their order: when it was created, and its id."""
RecordPlace = tuple[Timestamp, Count]
"""Place of a plan or an event in their order: its time, and its number in the table."""


# --- rows, as they are stored ------------------------------------------------------------------------------------------------


class KeptJob(msgspec.Struct, frozen=True, array_like=True):
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
    outcome: Json
    features: Json
    plan: Json | None
    """The newest plan that the job was given."""


class KeptPlan(msgspec.Struct, frozen=True, array_like=True):
    id: Count
    job: Name
    at: Timestamp
    kind: Name
    decision: Count | None
    data: Json


class KeptProfile(msgspec.Struct, frozen=True, array_like=True):
    job: Name
    at: Timestamp
    seconds: Seconds
    samples_per_second: Rate
    workers: Count
    servers: Count
    data: Json


class KeptDecision(msgspec.Struct, frozen=True, array_like=True):
    number: Count
    round: Count
    data: Json
    effect: Json | None
    done: Json | None


class KeptEvent(msgspec.Struct, frozen=True, array_like=True):
    id: Count
    job: Name
    at: Timestamp
    node: Name
    event: Name
    reason: Text
    data: Json


class KeptFit(msgspec.Struct, frozen=True, array_like=True):
    job: Name
    at: Timestamp
    kind: Name
    error: Number
    windows: Count
    data: Json


class KeptFittedJob(msgspec.Struct, frozen=True, array_like=True):
    job: KeptJob
    fit: KeptFit


# --- questions for rows, and pages of them -----------------------------------------------------------------------------------


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; all conditions must hold. Patterns are globs (``ads-*``); "" is any."""

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
    limit: Count | None = None
    """Number of jobs at most, the newest ones."""


class JobsQuestion(Message, frozen=True):
    """Which jobs match, the newest first? Answer JobsPage."""

    which: JobFilter = JobFilter()
    after: JobPlace | None = None


class JobsPage(Message, frozen=True):
    rows: Items[KeptJob]
    next: JobsQuestion | None


class JobIdsQuestion(Message, frozen=True):
    """What are the ids of all jobs, the newest first? Answer JobIdsPage."""

    after: JobPlace | None = None


class JobIdsPage(Message, frozen=True):
    rows: Items[Name]
    next: JobIdsQuestion | None


class PlansQuestion(Message, frozen=True):
    """What plans has the job had, the newest first? Answer PlansPage."""

    job: Name
    kind: Name = ""
    """Kind of the plans, desired or granted; empty: both."""
    most: Count | None = None
    before: RecordPlace | None = None


class PlansPage(Message, frozen=True):
    rows: Items[KeptPlan]
    next: PlansQuestion | None


class ProfilesQuestion(Message, frozen=True):
    """Which profiles of the job are of these times, the newest first? Answer ProfilesPage."""

    job: Name
    since: Timestamp = 0.0
    until: Timestamp = LATEST
    most: Count | None = None
    before: Timestamp | None = None


class ProfilesPage(Message, frozen=True):
    rows: Items[KeptProfile]
    next: ProfilesQuestion | None


class DecisionsQuestion(Message, frozen=True):
    """Which decisions were made for the job, the newest first? Answer DecisionsPage."""

    job: Name
    number: Count | None = None
    """Number of the only decision to tell; None: all."""
    most: Count | None = None
    below: Count | None = None


class DecisionsPage(Message, frozen=True):
    rows: Items[KeptDecision]
    next: DecisionsQuestion | None


class InputsQuestion(Message, frozen=True):
    """What were the decisions of this round made from? Answer KeptInputs."""

    round: Count


class KeptInputs(Message, frozen=True):
    inputs: Blob | None = None
    """Inputs as ``ConfigStore`` packs them; None: they were pruned."""
    kind: Name = ""


class EventsQuestion(Message, frozen=True):
    """What has happened to the job's nodes, the newest first? Answer EventsPage."""

    job: Name
    before: RecordPlace | None = None


class EventsPage(Message, frozen=True):
    rows: Items[KeptEvent]
    next: EventsQuestion | None


class FittedJobsQuestion(Message, frozen=True):
    """Which jobs have a fit of this kind, and which is the newest, the newest jobs first? Answer FittedJobsPage."""

    kind: Name
    most: Count | None = None
    after: JobPlace | None = None


class FittedJobsPage(Message, frozen=True):
    rows: Items[KeptFittedJob]
    next: FittedJobsQuestion | None


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


RowsQuestion = (
    JobsQuestion
    | JobIdsQuestion
    | PlansQuestion
    | ProfilesQuestion
    | DecisionsQuestion
    | InputsQuestion
    | EventsQuestion
    | FittedJobsQuestion
)
NewsQuestion = JobsNewsQuestion | JobNewsQuestion
HistoryQuestion = RowsQuestion | NewsQuestion
HistoryAnswer = (
    JobsPage
    | JobIdsPage
    | PlansPage
    | ProfilesPage
    | DecisionsPage
    | KeptInputs
    | EventsPage
    | FittedJobsPage
    | JobsNewsPage
    | JobNewsPage
)
