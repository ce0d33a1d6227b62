"""The place a worker's programs live in: namespaces and file system, by tier.

Tier 3 (root) and tier 2 (user namespaces) give a worker its own process, network, IPC, host-name
and mount namespaces, and a root file system made of read-only library folders. There is no /proc,
no /sys and no home in it. Tier 1 has none of this: Landlock says what can be opened. Nothing is
writable at any tier, unless the host asks tier 3 or 2 for one small writable folder, /box, renewed
for every program that touched it.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
import signal
import sys
from collections.abc import Iterable
from importlib.machinery import FileFinder, PathFinder
from typing import Any

from . import kernel

BOX = "/box"
SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/full", "/dev/urandom", "/dev/random")
"""Not /dev/zero: what is mapped from it is shared memory, which no limit of a process bounds."""
_FOREIGN = ("site-packages", "dist-packages")
_FIRST_ID = 100
"""What process ids of programs follow; server, zygote and checker are below."""
CHECKER_ID = 50
_UIDS = 0x70000000
"""Where the user ids of tier 3 start: one per worker, found by its process id."""


class Confinement:
    """What the server must know about the place it lives in.

    No dataclass: its module and what that imports would make every fork dearer.
    """

    uid: int | None = None
    """User id of programs, where they get one of their own; the checker's is the next."""
    capability = 0
    """The one capability of programs, as a mask: reading where Landlock allows it (tier 1)."""
    counts_threads = False
    """Whether RLIMIT_NPROC counts this worker's threads alone."""
    proc: int | None = None
    """A descriptor of /proc, for counting threads; never in reach of a program."""
    last_pid: int | None = None
    """A descriptor of ns_last_pid, where this world's process ids can be set anew (tiers 3, 2)."""
    rules: int | None = None
    """Landlock rules, applied in every child (tier 1)."""
    box_options = ""
    box_mark: tuple[int, ...] = ()

    def __init__(self, tier: int, *, own_pids: bool = False, box: bool = False) -> None:
        """`box`: there is a writable folder."""
        self.tier, self.own_pids, self.box = tier, own_pids, box

    def own_ids(self) -> None:
        """Find out whether the server can set process ids anew: since Linux 5.9, with a /proc."""
        if self.own_pids and self.proc is not None:
            flags = os.O_WRONLY | os.O_CLOEXEC
            try:
                self.last_pid = os.open("sys/kernel/ns_last_pid", flags, dir_fd=self.proc)
                self.restart_ids(1)  # the zygote is the next
            except OSError:
                self.last_pid = None

    def restart_ids(self, after: int = _FIRST_ID) -> None:
        """Let the next process and its threads get the first free ids after this one: ids counted
        on would be a note from one program to the next."""
        if self.last_pid is not None:
            os.pwrite(self.last_pid, b"%d" % after, 0)

    def renew_box(self) -> None:
        """An empty /box, unless the last program left the old one exactly as it was.

        The change time of the folder moves with anything made, removed or re-moded in it and cannot
        be set; clocks of files tick coarsely, so the counts of free inodes and blocks are compared
        too; the other times are where a note could be left. Any doubt mounts a new file system.
        """
        if not self.box or self._mark() == self.box_mark:
            return
        os.chdir("/")
        if self.box_mark:
            kernel.umount(BOX)
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("box", BOX, "tmpfs", flags, self.box_options)
        self.box_mark = self._mark()

    def _mark(self) -> tuple[int, ...]:
        status, space = os.stat(BOX), os.statvfs(BOX)
        times = (status.st_ctime_ns, status.st_mtime_ns, status.st_atime_ns)
        return (*times, status.st_dev, status.st_mode, space.f_ffree, space.f_bfree)


def library_folders(config: dict[str, Any]) -> list[str]:
    """What programs may read, where it exists: the standard library and what was asked for."""
    standard = [p for p in sys.path if os.path.isdir(p) and p != config["guest"]]
    folders = [*standard, *SYSTEM_LIBRARIES, *config["readable"]]
    return [path for path in dict.fromkeys(folders) if os.path.exists(path)]


def hidden_folders(folders: list[str], config: dict[str, Any]) -> list[str]:
    """Installed packages lying inside those folders, which only `packages=` opens: they may hold
    the very tests and solutions a program is judged by."""
    if config["all_packages"]:
        return []
    parents = [*folders, *glob.glob("/usr/lib/python*"), *glob.glob("/usr/lib64/python*")]
    spots = [os.path.join(os.path.realpath(p), name) for p in parents for name in _FOREIGN]
    return [spot for spot in dict.fromkeys(spots) if os.path.isdir(spot)]


def enter(config: dict[str, Any]) -> Confinement:
    """Confine the calling process. Returns in the process that shall serve.

    In tiers 3 and 2 that is a child, process 1 of its own world; the caller waits for it and exits.
    """
    tier = config["tier"]
    folders = library_folders(config)
    hidden = hidden_folders(folders, config)
    if tier >= 2:
        confinement = Confinement(tier, own_pids=True, box=config["writable"])
        _enter_namespaces(confinement)
        _build_root(confinement, folders, hidden, config)
    else:
        confinement = Confinement(tier)
        confinement.proc = _open_proc("/proc")
        if os.geteuid() == 0:
            _take_own_uid(confinement, folders)
        if tier == 1:
            readable = _split_readable(folders, hidden)
            _remember_modules([*sys.path, *config["import_path"]])
            rules = ruleset(readable, sinks=["/dev/null"])
            confinement.rules = fcntl.fcntl(rules, fcntl.F_DUPFD_CLOEXEC, 16)
            os.close(rules)
            own = ruleset([*readable, "/proc"], sinks=["/dev/null"])
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            restrict(own)  # the server itself: it imports what it is told to
            os.close(own)
        os.chdir("/")
    return confinement


def slot_uid(pid: int) -> int:
    """A user id nobody else has: far above real users, or near the top of a small id map."""
    with open("/proc/self/uid_map") as table:
        first, _, count = map(int, table.readline().split())
    top = first + count
    if top > _UIDS + (1 << 24):
        return _UIDS + 2 * pid
    span = max(top - first - 1100, 2)
    return max(top - 2 - 2 * (pid % (span // 2)), first + 1)


def _take_own_uid(confinement: Confinement, folders: list[str]) -> None:
    """A user id of their own for programs under root.

    Where that user could not read the library (it lies in root's home, say), programs keep one
    capability that opens files for reading: Landlock says which. Without either they would have to
    stay root, which tier 1 does not do.
    """
    uid = slot_uid(os.getpid())
    for capability in (0, kernel.CAP_DAC_READ_SEARCH, kernel.CAP_DAC_OVERRIDE):
        if _can_list(uid, capability, folders[:2]):
            confinement.uid, confinement.capability = uid, capability
            confinement.counts_threads = True
            return
    if confinement.tier == 1:
        raise OSError(
            f"under root, programs get a user id of their own, and no other user can read "
            f"{folders[0]}: make it readable for others, or start as an ordinary user"
        )


def _can_list(uid: int, capability: int, folders: list[str]) -> bool:
    """Whether a process with this user id and capability could list folders."""
    probe = os.fork()
    if probe == 0:
        code = 1
        try:
            kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            kernel.set_capabilities(capability)
            for folder in folders:
                os.listdir(folder)
            code = 0
        except OSError:
            pass
        os._exit(code)
    return os.waitpid(probe, 0)[1] == 0


def _enter_namespaces(confinement: Confinement) -> None:
    flags = (
        kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWCGROUP
    )
    if confinement.tier == 3:
        confinement.uid = slot_uid(os.getpid())
        confinement.counts_threads = True
        kernel.unshare(flags)
    else:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
        confinement.counts_threads = _counts_threads()
    server = os.fork()
    if server:
        os.closerange(3, 65536)
        _, status = os.waitpid(server, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _counts_threads() -> bool:
    """Whether RLIMIT_NPROC is counted per user namespace: since Linux 5.14."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (5, 14)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _build_root(
    confinement: Confinement, folders: list[str], hidden: list[str], config: dict[str, Any]
) -> None:
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    stage = "/tmp" if os.path.isdir("/tmp") else "/mnt"
    kernel.mount("root", stage, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=4m")
    os.mkdir(stage + "/old", 0o755)
    kernel.pivot_root(stage, stage + "/old")
    os.chdir("/")
    os.makedirs("/proc", exist_ok=True)
    confinement.proc = _mount_proc()
    for folder in folders:
        _bind(folder)
    for spot in hidden:
        kernel.mount("empty", spot, "tmpfs", kernel.MS_RDONLY, "size=4k,nr_inodes=2")
    for folder in config["readable"]:  # those inside a hidden folder are opened again
        _bind(folder)
    for device in DEVICES:
        _bind(device)
    has_tmp = os.path.lexists("/tmp")  # read-only, when a readable folder lies below it
    if confinement.box:
        os.mkdir(BOX, 0o755)
        if not has_tmp:
            os.symlink(BOX, "/tmp")
    elif not has_tmp:
        os.mkdir("/tmp", 0o755)
    kernel.umount("/old")
    os.rmdir("/old")
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", "/", None, flags | kernel.MS_NOSUID | kernel.MS_NODEV)
    if confinement.box:
        limits = config["limits"]
        os.environ["HOME"] = os.environ["TMPDIR"] = BOX
        confinement.box_options = f"size={limits['files']},nr_inodes={limits['inodes']},mode=1777"
        confinement.renew_box()


def _bind(path: str) -> None:
    """Show a folder or file of the old root at the same place, read-only. A link stays a link."""
    source = "/old" + path
    parent = os.path.dirname(path)
    os.makedirs(parent, mode=0o755, exist_ok=True)
    if os.path.islink(source):
        if not os.path.lexists(path):
            os.symlink(os.readlink(source), path)
        return
    if os.path.isdir(source):
        os.makedirs(path, mode=0o755, exist_ok=True)
    elif not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_readonly(path, device=path.startswith("/dev/"))


def _mount_proc() -> int | None:
    """A descriptor of this world's /proc, without leaving it mounted; None where forbidden."""
    try:
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    except OSError:
        return None
    descriptor = _open_proc("/proc")
    kernel.umount("/proc")
    return descriptor


def _open_proc(path: str) -> int | None:
    try:
        low = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(low)
    return high


def _remember_modules(folders: list[str]) -> None:
    """Let the import system know for good what lies in the folders it searches.

    A folder with a hidden part cannot be listed, or what it hides could be listed too. Imports list
    the folders they search, once and whenever a folder changed; these keep the first list.
    """
    for folder in folders:
        finder: Any = PathFinder._path_importer_cache(folder)  # type: ignore[attr-defined]
        if isinstance(finder, FileFinder):
            finder.find_spec("a_module_that_nobody_has")  # lists it
            finder._fill_cache = lambda: None  # type: ignore[attr-defined]


def _split_readable(folders: list[str], hidden: list[str]) -> list[str]:
    """What may be read. Landlock rules only add, so a folder with a hidden part is opened entry by
    entry."""
    readable = list(DEVICES)
    for folder in dict.fromkeys(map(os.path.realpath, folders)):
        inside = [spot for spot in hidden if spot.startswith(folder + "/")]
        if not inside:
            readable.append(folder)
            continue
        for name in os.listdir(folder):
            entry = os.path.join(folder, name)
            if os.path.islink(entry) and os.path.realpath(entry).startswith("/proc"):
                continue
            if entry not in inside and not any(s.startswith(entry + "/") for s in inside):
                readable.append(entry)
            elif entry not in inside:
                readable += _split_readable([entry], inside)[len(DEVICES) :]
    return readable


# ------------------------------------------------------------------------------------- Landlock
# Which files a process may open, without any privilege. It does not hide that a file exists (stat
# still answers); it stops opening, listing, writing, executing, and from ABI 4 on TCP, from ABI 6
# on abstract sockets and signals to outside.
_WRITE_FILE, _READ_FILE, _READ_DIR = 2, 4, 8
_FS_RIGHTS, _FS_RIGHTS_SINCE_5 = (1 << 15) - 1, (1 << 16) - 1
_NET_RIGHTS = 3  # bind and connect TCP
_SCOPES = 3  # abstract sockets, signals


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def ruleset(readable: Iterable[str], sinks: Iterable[str]) -> int:
    """A descriptor of rules: read below `readable`, write to the files `sinks`."""
    version = landlock_abi()
    if version < 3:  # before, anybody can cut off what may be read
        raise OSError(38, f"needs Landlock 3 (Linux 6.2), this kernel has {version or 'none'}")
    attributes = _RulesetAttr(
        fs=_FS_RIGHTS if version < 5 else _FS_RIGHTS_SINCE_5,
        net=_NET_RIGHTS if version >= 4 else 0,
        scoped=_SCOPES if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = kernel.syscall(
        "landlock_create_ruleset",
        ctypes.byref(attributes),  # type: ignore[arg-type]
        size,
        0,
    )
    for path in readable:
        _allow(rules, path, _READ_FILE | _READ_DIR)
    for path in sinks:
        _allow(rules, path, _READ_FILE | _WRITE_FILE)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        if not os.path.isdir(path):
            access &= _WRITE_FILE | _READ_FILE
        rule = _PathRule(access, parent)
        kernel.syscall("landlock_add_rule", rules, 1, ctypes.byref(rule), 0)  # type: ignore[arg-type]
    finally:
        os.close(parent)


def restrict(rules: int) -> None:
    """Put the calling thread under the rules for good (needs no_new_privs)."""
    kernel.syscall("landlock_restrict_self", rules, 0)
