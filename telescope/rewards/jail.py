"""Runs one untrusted Python program. Started by `sandbox` as a script; imports nothing of ours.

    launcher                          leaves for new namespaces, waits
      └─ supervisor (process 1)       trusted: starts the program, ends it, reports what it wrote
           └─ program                 untrusted: no capabilities, no network, a filter of syscalls

The program's folders are a private tmpfs and the read-only standard library. When the supervisor
ends, the kernel ends every process of its namespace. Only the supervisor holds the pipe to the
trainer, so the program cannot write to it. namespaces(7), user_namespaces(7), seccomp(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from typing import Any

NEW_MOUNT, NEW_PID, NEW_NET = 0x00020000, 0x20000000, 0x40000000
NEW_USER, NEW_IPC, NEW_UTS, NEW_CGROUP = 0x10000000, 0x08000000, 0x04000000, 0x02000000
ANY_NAMESPACE = NEW_MOUNT | NEW_PID | NEW_NET | NEW_USER | NEW_IPC | NEW_UTS | NEW_CGROUP
READ_ONLY, NO_SETUID, NO_DEVICES, REMOUNT, BIND = 1, 2, 4, 32, 4096
RECURSIVE, PRIVATE = 16384, 1 << 18
DETACH = 2
NOBODY = 65534
BOX = "/box"
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
DEVICES = ("/dev/null", "/dev/urandom")

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> its column below, and its number in the filter (AUDIT_ARCH_…)."""
REFUSED = """
    ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; mount 165 40;
    umount2 166 39; pivot_root 155 41; chroot 161 51; unshare 272 97; setns 308 268;
    bpf 321 280; perf_event_open 298 241; userfaultfd 323 282; keyctl 250 219; add_key 248 217;
    request_key 249 218; io_uring_setup 425 425; io_uring_enter 426 426;
    io_uring_register 427 427; memfd_create 319 279; memfd_secret 447 447; shmget 29 194;
    msgget 68 186; semget 64 190; mq_open 240 180; open_by_handle_at 304 265;
    name_to_handle_at 303 264; open_tree 428 428; move_mount 429 429; fsopen 430 430;
    fsconfig 431 431; fsmount 432 432; fspick 433 433; mount_setattr 442 442;
    pidfd_open 434 434; pidfd_getfd 438 438; kexec_load 246 104; init_module 175 105;
    finit_module 313 273; delete_module 176 106; swapon 167 224; swapoff 168 225;
    reboot 169 142; acct 163 89; quotactl 179 60; settimeofday 170 170; clock_settime 227 112;
    personality 135 92
"""
"""Syscalls that a program has no use for: ways out, and memory without a limit.

Name, number on x86_64, number on aarch64.
"""
CLONE, CLONE3, SOCKET, PIVOT_ROOT = (56, 220), (435, 435), (41, 198), (155, 41)

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [text.encode() if text else None for text in (source, target, kind)]
    checked(libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


# ---- the launcher ----


def isolate(job: dict[str, Any]) -> None:
    """Moves this process, and the children to come, into namespaces of their own."""
    if platform.machine() not in MACHINES:
        raise OSError(0, f"no filter of syscalls for {platform.machine()}")
    proc = os.open("/proc/self", os.O_PATH)
    limits = os.open("/proc/sys/user", os.O_PATH)
    others = NEW_USER | NEW_PID | NEW_NET | NEW_IPC | NEW_UTS | NEW_CGROUP
    if os.geteuid() == 0:
        checked(libc.unshare(NEW_MOUNT), "unshare")
        build_root(job)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)  # limits on processes do not hold for root
        checked(libc.prctl(4, 1, 0, 0, 0), "PR_SET_DUMPABLE")  # else uid_map is root's
        become_own_user(proc, others)
    else:
        become_own_user(proc, others | NEW_MOUNT)
        build_root(job)
    # In a namespace below, a program would have all capabilities again. The filter refuses it too.
    with contextlib.suppress(OSError):
        write_at(limits, "max_user_namespaces", "0")
    os.close(proc)
    os.close(limits)


def become_own_user(proc: int, namespaces: int) -> None:
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(namespaces), "unshare")
    write_at(proc, "setgroups", "deny")
    write_at(proc, "uid_map", f"1000 {user} 1")
    write_at(proc, "gid_map", f"1000 {group} 1")


def write_at(folder: int, name: str, text: str) -> None:
    file = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def build_root(job: dict[str, Any]) -> None:
    """Makes a private tmpfs with the standard library the only files that there are."""
    root = job["root"]
    mount("", "/", None, RECURSIVE | PRIVATE)
    size = f"size={job['files_mb']}m,nr_inodes=4096,mode=755"
    mount("tmpfs", root, "tmpfs", NO_SETUID | NO_DEVICES, size)
    library = os.path.dirname(os.path.realpath(os.__file__))
    for path in (*LIBRARIES, library):
        show(path, root + path)
    for name in ("site-packages", "dist-packages"):  # installed packages may hold anything
        if os.path.isdir(f"{library}/{name}"):
            mount("tmpfs", f"{root}{library}/{name}", "tmpfs", READ_ONLY, "size=4k")
    os.makedirs(root + "/dev")
    for path in DEVICES:
        os.close(os.open(root + path, os.O_CREAT | os.O_WRONLY))
        mount(path, root + path, None, BIND)
    os.makedirs(root + BOX)
    os.chmod(root + BOX, 0o777)  # noqa: S103 -- nobody else is there
    os.chdir(root)
    pivot_root = PIVOT_ROOT[MACHINES[platform.machine()][0]]
    checked(libc.syscall(pivot_root, b".", b"."), "pivot_root")
    checked(libc.umount2(b".", DETACH), "umount2")
    os.chdir(BOX)


def show(path: str, target: str) -> None:
    """Makes a folder of the machine visible, read-only."""
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path) and not os.path.ismount(target):
        if not os.path.isdir(target):
            os.makedirs(target)
        mount(path, target, None, BIND)
        locked = os.statvfs(path).f_flag & (NO_SETUID | NO_DEVICES | 8 | 1024 | 2048)
        flags = BIND | REMOUNT | READ_ONLY | NO_SETUID | NO_DEVICES | locked
        mount("", target, None, flags)


# ---- the supervisor ----


def supervise(job: dict[str, Any]) -> list[str | None]:
    """What the program wrote in each case; None where it took too long or wrote too much."""
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)  # a handler would let the program reach us
    outputs = []
    for case in job["cases"]:
        reader, writer = os.pipe()
        program = os.fork()
        if program == 0:
            run_program(job, case, writer)
        os.close(writer)
        outputs.append(collect(reader, program, job))
        os.close(reader)
    return outputs


def collect(reader: int, program: int, job: dict[str, Any]) -> str | None:
    """Reads until the program ends, its time is up or it has written too much; then ends it."""
    deadline = time.monotonic() + job["seconds"]
    most = job["output_kb"] * 1024
    written = b""
    ended = False
    is_open = True
    while not ended and len(written) <= most and time.monotonic() < deadline:
        ready = is_open and select.select([reader], [], [], 0.002)[0]
        if ready:
            part = os.read(reader, 65536)
            written += part
            is_open = bool(part)
        else:
            if not is_open:
                time.sleep(0.001)
            ended = os.waitpid(program, os.WNOHANG)[0] == program
    os.set_blocking(reader, False)
    while ended and len(written) <= most:
        try:
            part = os.read(reader, 65536)
        except BlockingIOError:  # a process that was left behind holds the pipe
            break
        if not part:
            break
        written += part
    end_all(program if not ended else 0, job)
    if not ended or len(written) > most:
        return None
    return written.decode("utf-8", "replace")


def end_all(program: int, job: dict[str, Any]) -> None:
    """Ends the program and everything that it has started."""
    try:
        if job["isolated"]:
            os.kill(-1, signal.SIGKILL)  # in this namespace: all but us
        elif program:
            os.killpg(program, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while os.waitpid(-1, 0)[0]:
            pass
    except ChildProcessError:
        pass


# ---- the program ----


def run_program(job: dict[str, Any], case: dict[str, Any], writer: int) -> None:
    """Never returns."""
    try:
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(stdin_of(case.get("input", "")), 0)
        os.dup2(null if "calls" in case else writer, 1)
        os.dup2(null, 2)
        os.dup2(writer, 3)
        os.closerange(4, 256)
        if "calls" not in case:
            os.close(3)
        set_limits(job)
        if job["isolated"]:
            drop_privileges()
            refuse_syscalls()
        space = {"__name__": "program" if "calls" in case else "__main__"}
        try:
            exec(compile(job["program"], "program.py", "exec"), space)  # noqa: S102
            for number, call in enumerate(case.get("calls", ())):
                answer(number, call, space)
        finally:
            sys.stdout.flush()
    finally:
        os._exit(0)


def stdin_of(text: str) -> int:
    """A file with this text, already deleted."""
    path = f"./.stdin{os.getpid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    os.write(file, text.encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def answer(number: int, call: str, space: dict[str, Any]) -> None:
    """Writes the value of one call as a line. What it should be is not known here."""
    try:
        value = eval(call, space)  # noqa: S307
        os.write(3, json.dumps([number, encoded(value)]).encode() + b"\n")
    except Exception:  # noqa: S110 -- no value, so the test fails
        pass


def encoded(value: object) -> object:
    """A Python value as JSON that tells tuples, sets and dicts from lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encoded(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((encoded(item) for item in value), key=json.dumps)}
    if isinstance(value, dict):
        pairs = [[encoded(key), encoded(item)] for key, item in value.items()]
        return {"dict": sorted(pairs, key=json.dumps)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"other": type(value).__name__}


def set_limits(job: dict[str, Any]) -> None:
    memory = job["memory_mb"] * 1024 * 1024
    seconds = int(job["seconds"]) + 1
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: job["files_mb"] * 1024 * 1024,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if job["isolated"]:  # launcher and supervisor count too
        limits[resource.RLIMIT_NPROC] = job["processes"] + 2
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))


def drop_privileges() -> None:
    checked(libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    for capability in range(64):
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP, past the last one
            break
    checked(libc.capset(struct.pack("II", 0x20080522, 0), b"\0" * 24), "capset")


def refuse_syscalls() -> None:
    """Installs a filter that answers EPERM to everything in REFUSED, and to other sockets."""
    column, machine = MACHINES[platform.machine()]
    load, equal, any_bit, at_least, give = 0x20, 0x15, 0x45, 0x35, 0x06
    allow, kill, denied, unknown = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026  # 0x26: ENOSYS
    refused = [int(entry.split()[1 + column]) for entry in REFUSED.split(";")]
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, machine),
        (give, 0, 0, kill),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),  # the x32 calls have other numbers
        (give, 0, 0, denied),
    ]
    for number in refused:
        program += [(equal, 0, 1, number), (give, 0, 0, denied)]
    program += [
        (equal, 0, 1, CLONE3[column]),  # its flags cannot be read here; libc then uses clone
        (give, 0, 0, unknown),
        (equal, 0, 4, CLONE[column]),
        (load, 0, 0, 16),
        (any_bit, 0, 1, ANY_NAMESPACE),
        (give, 0, 0, denied),
        (give, 0, 0, allow),
        (equal, 0, 3, SOCKET[column]),
        (load, 0, 0, 16),
        (equal, 1, 0, 1),  # AF_UNIX
        (give, 0, 0, denied),
        (give, 0, 0, allow),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    pointer = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    checked(libc.prctl(22, 2, pointer, 0, 0), "PR_SET_SECCOMP")


def main() -> None:
    job = json.load(sys.stdin.buffer)
    channel = os.dup(1)
    try:
        if job["isolated"]:
            isolate(job)
        else:
            os.chdir(job["root"])
    except OSError as error:
        os.write(channel, json.dumps({"refused": error.strerror or str(error)}).encode())
        return
    supervisor = os.fork()
    if supervisor == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the launcher
        report = json.dumps({"outputs": supervise(job)}).encode()
        with os.fdopen(channel, "wb") as file:
            file.write(report)
        os._exit(0)
    os.close(channel)
    os.close(1)
    os.waitpid(supervisor, 0)


if __name__ == "__main__":
    main()
