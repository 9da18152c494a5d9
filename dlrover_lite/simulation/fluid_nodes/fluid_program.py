"""Makes the programs of nodes whose jobs train as fluids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlrover_lite.backends.sim.physics.rates import Rates
from dlrover_lite.protocol.nodes import NodeSpec
from dlrover_lite.simulation.fluid_nodes.fluid_server import FluidServer
from dlrover_lite.simulation.fluid_nodes.fluid_worker import FluidWorker
from dlrover_lite.simulation.fluid_nodes.job_rates import JobRates, JobTruth

if TYPE_CHECKING:
    from dlrover_lite.simulation.job import SimulatedJob
    from dlrover_lite.simulation.nodes.program import NodeProgram

__all__ = ["FluidPrograms"]


class FluidPrograms:
    """Programs of one job's nodes. ``rates``: those that any job may share; ``report_seconds``: how often nodes report while nothing
    special goes on."""

    def __init__(self, truth: JobTruth, rates: Rates, *, report_seconds: float) -> None:
        self._truth, self._rates, self._report_seconds = truth, rates, report_seconds
        self._of: JobRates | None = None

    def changed(self) -> None:
        """Go on at other rates: something has changed of machines."""
        if self._of is not None:
            self._of.changed()

    def __call__(self, job: SimulatedJob, spec: NodeSpec) -> NodeProgram:
        if self._of is None or self._of.job is not job:
            self._of = JobRates(job, self._truth, self._rates)
        made: type[FluidServer | FluidWorker] = FluidServer if spec.role == "ps" else FluidWorker
        return made(job, spec, self._of, self._report_seconds)
