"""Which environments are tried: limits, locales, folders for temporary files, home folders."""

from __future__ import annotations

from dataclasses import dataclass

LONG = "/".join(("l" * 200, "m" * 200))
ODD = "t m [p] #{x} é"
NO_UTF8 = "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"


@dataclass(frozen=True)
class Environment:
    """An environment, as shell code in an empty folder. `names` is a pattern that the message of a run contains if the
    run fails. If it is None, the run must succeed. A user other than root runs it if `is_of_user`."""

    group: str
    name: str
    shell: str
    names: str | None = None
    is_of_user: bool = False

    def __str__(self) -> str:
        return f"{self.group}-{self.name}"


ENVIRONMENTS = (
    *(Environment("open files", str(number), f"ulimit -n {number}", r"ulimit -n") for number in (32, 64, 128, 256)),
    *(
        Environment("memory", f"{mib} MiB", f"ulimit -v {mib * 1024}", r"ulimit -v")
        for mib in (1000, 2000, 3000, 4000, 6000)
    ),
    *(
        Environment("processes", str(number), f"ulimit -u {number}", r"ulimit -u", is_of_user=True)
        for number in (8, 20, 40, 60, 80, 120)
    ),
    Environment("size of files", "16 KiB", "ulimit -f 16", r"ulimit -f"),
    Environment("locale", "C", "export LC_ALL=C"),
    Environment("locale", "POSIX", "unset LC_ALL; export LANG=POSIX"),
    Environment("locale", "not installed", "export LC_ALL=xx_YY.UTF-8"),
    Environment("locale", "ASCII", NO_UTF8),
    Environment("locale", "ASCII streams", "export PYTHONIOENCODING=ascii"),
    Environment("locale", "Turkish", "localedef -i tr_TR -f UTF-8 ./tr_TR; export LOCPATH=$PWD LC_ALL=tr_TR"),
    Environment("locale", "Latin-1", "localedef -i de_DE -f ISO-8859-1 ./de_DE; export LOCPATH=$PWD LC_ALL=de_DE"),
    Environment("TMPDIR", "empty", "export TMPDIR="),
    Environment("TMPDIR", "missing", "export TMPDIR=$PWD/none"),
    Environment("TMPDIR", "a file", "touch file; export TMPDIR=$PWD/file"),
    Environment("TMPDIR", "relative", "mkdir t; export TMPDIR=t"),
    Environment("TMPDIR", "odd characters", f"export TMPDIR=$PWD/'{ODD}'; mkdir \"$TMPDIR\""),
    Environment("TMPDIR", "line break", 'export TMPDIR="$PWD/a\nb"; mkdir "$TMPDIR"'),
    Environment("TMPDIR", "long", f"export TMPDIR=$PWD/{LONG}; mkdir -p $TMPDIR"),
    Environment("TMPDIR", "link", "mkdir t; ln -s t link; export TMPDIR=$PWD/link"),
    Environment("TMPDIR", "not writable", "export TMPDIR=/etc", is_of_user=True),
    Environment("HOME", "not set", "unset HOME XDG_CACHE_HOME"),
    Environment("HOME", "not set, unknown user", "unset HOME", is_of_user=True),
    Environment("HOME", "empty", "export HOME="),
    Environment("HOME", "relative", "unset XDG_CACHE_HOME; export HOME=h"),
    Environment("HOME", "missing", "unset XDG_CACHE_HOME; export HOME=$PWD/none"),
    Environment("HOME", "not writable", "unset XDG_CACHE_HOME; export HOME=/etc", "XDG_CACHE_HOME", is_of_user=True),
)
