"""Records what the messages of a worker or a server report about it."""

from collections.abc import Callable, Mapping
from typing import Any

from parallax_runner.errors import ErrorParts
from parallax_runner.launch import installation
from parallax_runner.launch.blame.first_death import Member
from parallax_runner.launch.control import wire
from parallax_runner.launch.control.wire import Message


def refuse(member: Member, message: Message, fault: str | None) -> None:
    """Marks a process as lost if there is a fault. A restarted run would have the same fault."""
    if fault is not None:
        member.error, member.recurs = fault, True
        member.lose(message.received_secs)


def note_failure(member: Member, message: Message) -> None:
    """Records the error that a process reports. The process is lost."""
    _note_standing(member, message)
    member.lose(message.received_secs)
    if member.error is not None:  # the driver has refused it, so this error follows from the driver's reason
        return
    member.error = str(message.fields.get("error", "failed and gave no reason"))
    member.parts = _parts_in(message.fields)
    member.traceback = str(message.fields.get("traceback", ""))
    member.recurs = bool(message.fields.get("recurs"))
    member.wanted_status = message.fields.get("exit_status")


def _parts_in(fields: Mapping[str, Any]) -> ErrorParts | None:
    """Returns the parts of an error of this package, or None for any other error."""
    parts = fields.get("parts")
    if parts is None:
        return None
    try:
        return ErrorParts.from_json(parts)
    except ValueError:  # the text of the error is still there
        return None


def _note_hello(member: Member, message: Message) -> None:
    member.said_hello, member.connected, member.host = True, True, message.host
    member.pid = message.fields.get("pid")
    member.memory_kills = message.fields.get("memory_kills")


def _note_standing(member: Member, message: Message) -> None:
    fields = message.fields
    member.doing = fields.get("doing", member.doing)
    member.doing_secs = fields.get("doing_secs", member.doing_secs)
    member.step = fields.get("step", member.step)
    member.awaited = fields.get("awaited", member.awaited)
    member.where = fields.get("where", member.where)
    member.inside = fields.get("inside", member.inside)
    member.peak_bytes = fields.get("peak_bytes", member.peak_bytes)


def _check_installation(member: Member, message: Message) -> None:
    refuse(member, message, installation.fault_of(message.fields["versions"], installation.versions()))


def _note_closed(member: Member, message: Message) -> None:
    member.connected = False
    if not member.done:
        member.lose(message.received_secs)


# The messages that concern only the member that sent them, with the functions that record them.
RECORDED: Mapping[str, Callable[[Member, Message], None]] = {
    wire.HELLO: _note_hello,
    wire.ALIVE: _note_standing,
    wire.STANDS: _note_standing,
    wire.FAIL: note_failure,
    wire.INSTALLATION: _check_installation,
    wire.CLOSED: _note_closed,
}
