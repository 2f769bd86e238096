"""Files and folders that only their owner can change.

A site's promises rest on its files: who can replace the ledger, the roster or the list
of reviewed apps can lift a limit. `why_untrusted` decides for all of them, each time
before one is used.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

# What a server may learn of an untrusted file: not which one, nor why.
OPEN_TO_OTHERS = "A file or folder of this site is open to other users."

_OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_CAN_DO_ANYTHING = stat.S_IRWXG | stat.S_IRWXO
# As many links as Linux follows.
_MOST_LINKS = 40


def why_untrusted(
    path: Path, *, is_secret: bool = False, in_own_folder: bool = False
) -> str:
    """Return why a file or folder must not be used, and what mends it; "" if it may.

    As with sshd's StrictModes, the path, each folder above it, and each symbolic link
    that it leads through must belong to root or to the user of this process, and
    neither group nor others may write them. A folder above it may be open to all if it
    is sticky, as /tmp is: there nobody can replace the files of others.

    Only owners and modes are read. A POSIX access control list shows in the mode of the
    group; one of another kind (NFSv4, macOS) does not.

    Parameters
    ----------
    path : Path
        Path of a file or folder. One that does not exist yet is trusted if the folders
        above it are.
    is_secret : bool
        Whether a file must not be readable by others, either.
    in_own_folder : bool
        Whether a file's own folder must not be one such as /tmp, because files beside
        it count too.
    """
    writable: list[str] = []
    user = os.geteuid()
    folder, is_of_all, must_be_own = "/", False, in_own_folder
    try:
        for place, found, is_last in _way_to(path):
            mode = found.st_mode
            if found.st_uid not in (0, user):
                return _of_another(path, place, found, is_last=is_last)
            if stat.S_ISLNK(mode):  # everybody may write it, says its mode
                continue
            is_folder = stat.S_ISDIR(mode)
            if not is_folder and not is_last:
                break  # nothing can be below it: whoever opens the path says so
            if is_secret and not is_folder and mode & _OTHERS_CAN_DO_ANYTHING:
                return _readable(path, place, found)
            is_open = bool(mode & _OTHERS_CAN_WRITE)
            if is_folder:
                folder, is_of_all = place, is_open and bool(mode & stat.S_ISVTX)
                must_be_own = must_be_own or is_last
            if is_open and not (is_folder and is_of_all):
                writable.append(place)
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}."
    if must_be_own and is_of_all:
        return _of_all(path, folder)
    return _of_others(path, writable) if writable else ""


def make_folder(path: Path) -> None:
    """Create a folder, and those above it that are missing, for their owner only.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    # With parents=True, `Path.mkdir` leaves those above it to the umask.
    missing = [parent for parent in path.parents if not parent.exists()]
    for folder in (*reversed(missing), path):
        folder.mkdir(mode=0o700, exist_ok=True)


def _way_to(path: Path) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield each folder and link that a path leads through, and last its file.

    With its status, and whether the path ends there. The resolved path would not do:
    who can change a link decides where the path ends.
    """
    place, num_links = "/", 0
    left = _names(str(path.absolute()))
    yield place, os.lstat(place), False
    while left:
        name = left.pop()
        # What is above a folder was yielded on the way to it, but not as the last.
        here = os.path.dirname(place) if name == ".." else os.path.join(place, name)
        found = os.lstat(here)
        is_link = stat.S_ISLNK(found.st_mode)
        yield here, found, not left and not is_link
        if not is_link:
            place = here
            continue
        num_links += 1
        if num_links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(here)
        place = "/" if target.startswith("/") else place
        left += _names(target)


def _names(path: str) -> list[str]:
    """Return the names that a path leads through, the last one first."""
    return [name for name in path.split("/")[::-1] if name not in ("", ".")]


def _of_all(path: Path, folder: str) -> str:
    """Return what is said of a folder such as /tmp, or a file in it."""
    is_it = folder == os.path.abspath(path)
    what = "it" if is_it else f"its folder {folder}"
    named = shlex.quote(os.path.join(folder, "fbo"))
    return (
        f"{path} is not used, as all users may write {what}. Make a folder of your own "
        f"in it, and name that one: mkdir -m 700 {named}"
    )


def _of_others(path: Path, writable: list[str]) -> str:
    """Return what is said of a path that others can write, there or above it."""
    above = [place for place in writable if place != os.path.abspath(path)]
    what = f"{' and '.join(above)}, which it is in" if above else "it"
    return (
        f"{path} is not used, as others may write {what}. Look whether its content is "
        f"right, then: chmod go-w {shlex.join(writable)}"
    )


def _of_another(path: Path, place: str, found: os.stat_result, *, is_last: bool) -> str:
    """Return what is said of a file or folder that belongs to another user."""
    options = "-h " if stat.S_ISLNK(found.st_mode) else ""
    if is_last and stat.S_ISDIR(found.st_mode):
        options = "-R "
    is_it = place == os.path.abspath(path)
    what = "it" if is_it else f"{place}, which it is in or leads through,"
    own_user, user = os.geteuid(), found.st_uid
    return (
        f"{path} is not used, as {what} belongs to user {user}, and this process to "
        f"user {own_user}. Run it as user {user}, or, if the content is right: "
        f"chown {options}{own_user} {shlex.quote(place)}"
    )


def _readable(path: Path, place: str, found: os.stat_result) -> str:
    """Return what is said of a secret that others can read, or even write."""
    may = "write" if found.st_mode & _OTHERS_CAN_WRITE else "read"
    own_user, quoted = os.geteuid(), shlex.quote(place)
    first = "" if found.st_uid == own_user else f"chown {own_user} {quoted} && "
    return (
        f"{path} is not used, as others may {may} it. Look whether its content is "
        f"right, then: {first}chmod 600 {quoted}"
    )
