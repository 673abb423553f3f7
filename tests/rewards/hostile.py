"""Programs that try to get out of the sandbox. Each prints ESCAPED if it succeeds.

`{secret}` is a file outside, `{folder}` its folder, `{port}` a port on which somebody listens,
`{abstract}` an abstract socket, `{pid}` the process that starts the sandbox.
"""

from __future__ import annotations

SYSCALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef call(*a):\n    return libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])\n"

NETWORK = {
    "connects_to_a_port": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1).send(b'x')\nprint('ESCAPED')",
    "sends_a_datagram": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))\nprint('ESCAPED')",
    "asks_a_name_server": "import socket\nsocket.getaddrinfo('example.com', 80)\nprint('ESCAPED')",
    "opens_a_raw_socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)\nprint('ESCAPED')",
    "talks_to_the_hypervisor": "import socket\nsocket.socket(40, socket.SOCK_STREAM)\nprint('ESCAPED')",
    "opens_a_netlink_socket": "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nprint('ESCAPED')",
    "uses_ipv6": "import socket\nsocket.socket(socket.AF_INET6).connect(('::1', {port}))\nprint('ESCAPED')",
    "finds_an_abstract_socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{abstract}')\nprint('ESCAPED')",
    "downloads": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}', timeout=1)\nprint('ESCAPED')",
}

FILES = {
    "reads_passwd": "print('ESCAPED', open('/etc/passwd').read())",
    "reads_a_home_folder": "import os\nfor root in ('/root', '/home', os.path.expanduser('~')):\n    for folder, _, names in os.walk(root):\n        if '.ssh' in folder or '.bashrc' in names:\n            print('ESCAPED')",
    "reads_a_secret_by_path": "print('ESCAPED', open('{secret}').read())",
    "lists_the_folder_outside": "import os\nprint('ESCAPED', os.listdir('{folder}'))",
    "reads_through_a_symlink": "import os\nos.symlink('{secret}', 'link')\nprint('ESCAPED', open('link').read())",
    "reads_through_dots": "print('ESCAPED', open('../' * 30 + '{secret}'[1:]).read())",
    "reads_through_proc": "print('ESCAPED', open('/proc/1/root{secret}').read())",
    "makes_a_hard_link": "import os\nos.link('{secret}', 'mine')\nprint('ESCAPED')",
    "writes_outside": "open('{folder}/written', 'w').write('x')\nprint('ESCAPED')",
    "writes_through_a_symlink": "import os\nos.symlink('{folder}', 'there')\nopen('there/linked', 'w').write('x')\nprint('ESCAPED')",
    "changes_the_standard_library": "import os\nopen(os.__file__, 'a').write('#')\nprint('ESCAPED')",
    "deletes_the_standard_library": "import os\nos.unlink(os.__file__)\nprint('ESCAPED')",
    "makes_a_device": "import os, stat\nos.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))\nopen('disk', 'rb').read(1)\nprint('ESCAPED')",
    "remounts_its_root": SYSCALL + "if call(165, 0, b'/', 0, 32, 0) == 0: print('ESCAPED')",
    "leaves_by_chroot": "import os\nos.mkdir('x')\nos.chroot('x')\nos.chdir('../' * 30)\nprint('ESCAPED', os.listdir('.'))",
    "opens_by_handle": SYSCALL + "if call(304, -100, b'\\0' * 64, 0) >= 0: print('ESCAPED')",
    "starts_a_shell": "import subprocess\nprint('ESCAPED', subprocess.run(['/bin/sh', '-c', 'id'], capture_output=True))",
}  # fmt: skip

PROCESSES = {
    "reads_the_environment": "import os\nif any('SECRET' in key for key in os.environ): print('ESCAPED')",
    "reads_the_parents_environment": "import os\nprint('ESCAPED', open(f'/proc/{{os.getppid()}}/environ').read())",
    "kills_its_parent": "import os, signal\nfor number in range(1, 32):\n    try: os.kill(os.getppid(), number)\n    except OSError: pass\nimport time; time.sleep(0.02)\nif os.getppid() != 1: print('ESCAPED')",
    "kills_the_trainer": "import os\nos.kill({pid}, 9)\nprint('ESCAPED')",
    "kills_everybody": "import os\nfor pid in range(2, 3000):\n    if pid != os.getpid():\n        try:\n            os.kill(pid, 9)\n            print('ESCAPED')\n        except OSError: pass",
    "traces_its_parent": SYSCALL + "if call(101, 16, os.getppid(), 0, 0) == 0: print('ESCAPED')",
    "reads_the_parents_memory": SYSCALL + "if call(310, os.getppid(), 0, 0, 0, 0, 0) >= 0: print('ESCAPED')",
    "becomes_root": "import os\nos.setuid(0)\nprint('ESCAPED')",
    "takes_a_new_user_namespace": SYSCALL + "if libc.unshare(0x10000000) == 0: print('ESCAPED')",
    "clones_into_a_namespace": SYSCALL + "pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nif pid > 0: print('ESCAPED')",
    "raises_its_own_limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nprint('ESCAPED')",
    "raises_its_priority": "import os\nos.nice(-5)\nprint('ESCAPED')",
    "renames_the_machine": "import socket\nsocket.sethostname('mine')\nprint('ESCAPED')",
    "loads_a_kernel_program": SYSCALL + "if call(321, 0, b'\\0' * 128, 72) >= 0: print('ESCAPED')",
    "reads_the_keyring": SYSCALL + "if call(250, 0, -3, 0) > 0: print('ESCAPED')",
    "uses_io_uring": SYSCALL + "if call(425, 8, ctypes.create_string_buffer(120)) >= 0: print('ESCAPED')",
    "uses_the_x32_calls": SYSCALL + "if call(0x40000000 + 39) > 0: print('ESCAPED')",
    "imports_the_trainer": "import sys\nsys.path += ['/usr/lib/python3/dist-packages']\nimport telescope\nprint('ESCAPED')",
}  # fmt: skip

RESOURCES = {
    "forks_without_end": "import os\nchildren = 0\ntry:\n    while children < 50:\n        if os.fork() == 0:\n            import time; time.sleep(9)\n        children += 1\nexcept OSError: pass\nif children > 8: print('ESCAPED', children)",
    "starts_threads_without_end": "import threading, time\nstarted = 0\ntry:\n    while started < 50:\n        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n        started += 1\nexcept RuntimeError: pass\nif started > 8: print('ESCAPED', started)",
    "allocates_memory": "data = bytearray(600 << 20)\nprint('ESCAPED')",
    "maps_memory": "import mmap\nmmap.mmap(-1, 600 << 20)\nprint('ESCAPED')",
    "hides_memory_in_a_memfd": "import os\nos.memfd_create('x')\nprint('ESCAPED')",
    "hides_memory_in_shared_segments": SYSCALL + "if call(29, 0, 1 << 20, 0o1600) >= 0: print('ESCAPED')",
    "fills_the_disk": "written = 0\ntry:\n    for number in range(64):\n        written += open(f'f{{number}}', 'wb').write(b'x' * (1 << 20))\nexcept OSError: pass\nif written > 9 << 20: print('ESCAPED', written)",
    "makes_a_million_files": "made = 0\ntry:\n    for number in range(6000):\n        open(f'f{{number}}', 'w').close()\n        made += 1\nexcept OSError: pass\nif made > 5000: print('ESCAPED', made)",
    "opens_many_files": "files = []\ntry:\n    for number in range(500): files.append(open('/dev/null'))\nexcept OSError: pass\nif len(files) > 100: print('ESCAPED')",
}  # fmt: skip

TOO_LONG = {
    "loops_for_ever": "while True: pass",
    "sleeps_for_ever": "import time\ntime.sleep(1e6)",
    "ignores_signals": "import signal, time\nfor number in range(1, 32):\n    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
    "stops_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "prints_without_end": "while True: print('x' * 100000)",
}

LEFT_BEHIND = {
    "leaves_a_daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(1e6)\n    os._exit(0)\nprint('done')",
    "leaves_a_daemon_that_holds_the_pipe": "import os, time\nif os.fork() == 0:\n    while True: time.sleep(1)\nprint('done')",
    "crashes": "print('done', flush=True)\nimport ctypes\nctypes.string_at(0)",
    "raises_an_interrupt": "print('done')\nraise KeyboardInterrupt",
}

FORGERIES = {
    "exits_with_success": "import os\nprint('all tests passed')\nos._exit(0)",
    "writes_to_every_descriptor": "import os\nfor number in range(64):\n    for text in (b'{\"outputs\": [\"[0, 41]\"]}', b'[0, true]\\n', b'[0, \"passed\"]\\n'):\n        try: os.write(number, text)\n        except OSError: pass",
    "answers_what_equals_everything": "class Right:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef f(x): return Right()",
    "answers_with_a_number_that_equals_everything": "class Right(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(x): return Right(7)",
    "replaces_our_functions": "import sys, json\nmain = sys.modules['__main__']\nmain.encoded = lambda value: True\njson.dumps = lambda *_, **__: '[0, true]'\ndef f(x): return True",
    "looks_for_the_answer_in_memory": "import sys\nfound = []\nframe = sys._getframe()\nwhile frame:\n    found += [frame.f_locals, frame.f_globals]\n    frame = frame.f_back\ntext = repr(found)\nanswer = 'kum' + 'quat' if 'kum' + 'quat' in text else ''\nprint(answer)\ndef f(x): return answer",
    "answers_at_exit": "import atexit, os\natexit.register(os.write, 3, b'[0, true]\\n')",
    "answers_a_deep_list": "value = []\nfor _ in range(100000): value = [value]\ndef f(x): return value",
    "writes_deep_json": "import os\nos.write(3, b'[0, ' + b'[' * 100000 + b'\\n')",
    "answers_a_huge_number": "def f(x): return 10 ** 100000",
}  # fmt: skip
