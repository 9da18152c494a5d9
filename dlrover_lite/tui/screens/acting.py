"""Screens of what can be acted on: each key asks, or fills in a form, where that is due, and then has it done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from dlrover_lite.tui.actions import Actions, Aim, Wanted, why_not
from dlrover_lite.tui.keys import Key
from dlrover_lite.tui.model import Autoscaling, JobDetail, JobRow, NodeRow, Room
from dlrover_lite.tui.pages import acting_page
from dlrover_lite.tui.pages.acting_page import Question
from dlrover_lite.tui.screens.confirm import Answer, Confirm
from dlrover_lite.tui.screens.form import Form
from dlrover_lite.tui.screens.page import TablePage
from dlrover_lite.tui.screens.palette import Choice

__all__ = ["ActingPage"]

_OF_A_NODE = ("resize", "drain", "kill")


class ActingPage(TablePage):
    """A page whose keys act on what ``aim`` says."""

    def aim(self) -> Aim:
        raise NotImplementedError

    @property
    def acts(self) -> Actions:
        assert self.tui.actions is not None
        return self.tui.actions

    # --- which keys there are, and work -----------------------------------------------------------------------------

    def why_not(self, action: str) -> str:
        return self._why_not(action, self.aim()) if action in _DO else super().why_not(action)

    def _why_not(self, action: str, aim: Aim) -> str:
        actions = self.tui.actions
        return why_not(action, aim, user=actions.user if actions is not None else "")

    def label_of(self, key: Key) -> str:
        if key.action != "hold":
            return super().label_of(key)
        now = _autoscaling(self.aim())
        return "Resume" if now is not None and now.paused else "Pause "  # as long as the other

    def offers(self, key: Key) -> bool:
        """Say whether a key makes sense here: where the brain doesn't ask there is nothing to answer. (Dropping what it carries out by
        itself works there too.)"""
        if key.action not in ("accept", "reject"):
            return True
        now = _autoscaling(self.aim())
        return now is not None and now.mode == "suggest"

    @property
    def node_ids(self) -> Sequence[str]:
        detail = self.aim().detail
        return [node.id for node in detail.nodes if node.alive] if detail is not None else []

    # --- ways to begin ----------------------------------------------------------------------------------------------

    def action_act(self, action: str, aim: Aim | None = None) -> None:
        """Ask what is to be asked, and have it done; or tell why not."""
        aim = aim or self.aim()
        if why := self._why_not(action, aim):
            self.tui.tell(why, "warning")
        elif (row := aim.row) is not None:
            _DO[action](self, row, aim)

    def command_act(self, name: str, argument: str) -> None:
        aim = self.aim()
        if self.tui.actions is None:
            self.tui.tell("Nothing can be changed from here", "warning")
            return
        if argument and aim.detail is not None:
            aim = aim._replace(node=next((node for node in aim.detail.nodes if node.id == argument), None))
        now = _autoscaling(aim)
        if name in ("pause", "resume"):
            if now is not None and bool(now.paused) == (name == "pause"):
                self.tui.tell(f"Autoscaling is {'paused already' if now.paused else 'not paused'}", "warning")
                return
            name = "hold"
        self.action_act(name, aim)

    def action_recipe(self) -> None:
        if not self.refused("recipe"):
            if (row := self.aim().row) is not None:
                self.tui.open_recipe(row)
            else:
                super().action_recipe()

    def command_logs(self, process: str) -> None:
        if (row := self.aim().row) is not None:
            self.tui.open_log(row, process)
        else:
            super().command_logs(process)

    def acting_commands(self) -> Iterable[Choice]:
        """Yield the actions that can be done now, for the palette."""
        aim = self.aim()
        for group in self.KEYS:
            for key in group:
                if key.acts and self.has(key) and self.offers(key) and not self.why_not(key.action):
                    whom = aim.node.id if aim.node is not None and key.action in _OF_A_NODE else aim.row and aim.row.id
                    yield Choice(f"{self.label_of(key).strip()} {whom}", key.what, partial(self.action_act, key.action))

    # --- what each does ---------------------------------------------------------------------------------------------

    def _do(self, what: Callable[[], str]) -> None:
        self.tui.fetch(what, self.tui.done)

    def _ask(self, question: Question, then: Callable[[Answer], None]) -> None:
        """Ask a question; ``then`` is called unless the answer is no."""

        def answered(answer: Answer | None) -> None:
            if answer is not None and answer != "no":
                then(answer)

        self.tui.push_screen(Confirm(question), answered)

    def hold(self, row: JobRow, aim: Aim) -> None:
        if (now := _autoscaling(aim)) is not None:
            wanted: Wanted = "resume" if now.paused else "pause"
            self._do(lambda: self.acts.autoscale(row, wanted, now))

    def accept(self, row: JobRow, aim: Aim) -> None:
        if (now := _autoscaling(aim)) is not None:
            self._do(lambda: self.acts.autoscale(row, "accept", now))

    def reject(self, row: JobRow, aim: Aim) -> None:
        if (now := _autoscaling(aim)) is None:
            return
        if now.under_way:
            self._ask(acting_page.reject(row, now), lambda _: self._do(lambda: self.acts.autoscale(row, "reject", now)))
        else:
            self._do(lambda: self.acts.autoscale(row, "reject", now))

    def scale(self, row: JobRow, _aim: Aim) -> None:
        """Show the form to scale a job. It is there at once, and filled in when it is known what there is."""
        form = Form(f"Scale {row.id}", acting_page.SCALE_FIELDS)

        def fill(room: Room) -> None:
            def asked(values: Mapping[str, str]) -> Callable[[], str]:
                workers, servers = acting_page.scale_asked(room, values)
                return lambda: self.acts.scale(row, workers, servers)

            form.fill(acting_page.scale_fields(room), acting_page.scale_facts(room), asked)

        self.tui.push_screen(form)
        self.tui.fetch(lambda: self.acts.room(row), fill, form.cannot)

    def resize(self, row: JobRow, aim: Aim) -> None:
        _, node = _of_node(aim)

        def asked(values: Mapping[str, str]) -> Callable[[], str]:
            cores, memory = acting_page.resize_asked(node, values)
            return lambda: self.acts.resize(row, node.id, cores, memory)

        fields = acting_page.resize_fields(node)
        form = Form(f"Resize {node.id} of {row.id}", fields)
        form.fill(fields, acting_page.resize_facts(node), asked)
        self.tui.push_screen(form)

        def tell(room: Room) -> None:
            form.fill(fields, acting_page.resize_facts(node, room), asked)

        self.tui.fetch(
            lambda: self.acts.room(row), tell, lambda _why: None
        )  # its master says what there is no room for

    def drain(self, row: JobRow, aim: Aim) -> None:
        detail, node = _of_node(aim)

        def answered(answer: Answer) -> None:
            self._do(lambda: self.acts.drain(row, node.id, replace=answer == "instead"))

        self._ask(acting_page.drain(row, detail, node), answered)

    def kill(self, row: JobRow, aim: Aim) -> None:
        detail, node = _of_node(aim)
        self._ask(acting_page.kill(row, detail, node), lambda _: self._do(lambda: self.acts.kill(row, node.id)))

    def checkpoint(self, row: JobRow, _aim: Aim) -> None:
        self._do(lambda: self.acts.checkpoint(row))

    def stop(self, row: JobRow, aim: Aim) -> None:
        self._ask(acting_page.stop(row, aim.detail), lambda _: self._do(lambda: self.acts.stop(row)))


_DO: dict[str, Callable[[ActingPage, JobRow, Aim], None]] = {
    "hold": ActingPage.hold,
    "accept": ActingPage.accept,
    "reject": ActingPage.reject,
    "scale": ActingPage.scale,
    "resize": ActingPage.resize,
    "drain": ActingPage.drain,
    "kill": ActingPage.kill,
    "checkpoint": ActingPage.checkpoint,
    "stop": ActingPage.stop,
}


def _autoscaling(aim: Aim) -> Autoscaling | None:
    return aim.detail.autoscaling if aim.detail is not None else None


def _of_node(aim: Aim) -> tuple[JobDetail, NodeRow]:
    """Return the job and the node of an action that ``why_not`` has let through."""
    assert aim.detail is not None and aim.node is not None
    return aim.detail, aim.node
