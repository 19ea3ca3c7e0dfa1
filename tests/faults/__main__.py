"""The drills: `python -m faults fuzz --cases 20000`, with src and tests on PYTHONPATH. `make faults` runs them all."""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch


def fuzz(given):
    from faults import fuzz, self_test

    readers = self_test.READERS if given.self_test else fuzz.READERS
    if given.corpus:
        every = fuzz.corpus()
    else:
        every = fuzz.cases(given.cases, given.seed, given.only, readers)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        found = []
        for one in fuzz.run_cases(every, Path(work), given.workers, readers):
            found.append(one)
            if one.fault and not given.json:
                print(f"[{len(found)}/{len(every)}] {one.signature}\n    {one.done}", flush=True)
        if given.keep:
            fuzz.keep(found, fuzz.CORPUS, Path(work))
    if given.json:
        print(
            json.dumps(
                [
                    {"what": one.what, "fault": one.fault, "signature": one.signature, "done": one.done}
                    for one in found
                ]
            )
        )
        return 0
    findings = sum(bool(one.fault) for one in found)
    print(fuzz.table(found))
    print(f"\n{len(found):,} cases, {findings} findings, {time.monotonic() - start:.0f} s\n{fuzz.say(found)}")
    return int(findings > 0)


def kills(given):
    from faults import kills

    names = [name for name, work in kills.WORK.items() if given.only in name and (given.all or not work.slow)]
    most = None if given.all else given.points
    start, found, totals = time.monotonic(), [], {}
    for drill, ended in kills.run_drills(names, given.kinds.split(","), most, given.random, given.seed):
        found.append(ended)
        totals[drill.name] = drill.total
        if ended.problem and not given.json:
            point = ended.point
            print(
                f"{point.work}, {point.kind} {point.at:.5g}, before {ended.operation}: {ended.problem}",
                flush=True,
            )
    if given.json:
        print(json.dumps([dataclasses.asdict(one) for one in found]))
        return 0
    problems = sum(bool(one.problem) for one in found)
    print(kills.table(found, totals))
    print(f"\n{len(found):,} accidents, {problems} with a loss, {time.monotonic() - start:.0f} s")
    return int(problems > 0)


def service(given):
    from faults import service

    kinds = ("idle", "slow", "bombs", "heavy", "good", "seconds", "pause", "descriptors", "examples")
    attack = service.Attack(**{name: getattr(given, name) for name in kinds})
    alone, attacked = service.run(attack)
    print(f"{attack}\nload of this machine: {', '.join(f'{one:.1f}' for one in os.getloadavg())}")
    print("\n".join([*attacked.lines(alone), *attacked.log]))
    problems = attacked.problems()
    print(f"\n{len(problems)} problems", *problems, sep="\n")
    return int(bool(problems))


def strangers(given):
    from faults import doors, self_test
    from faults import given as folders
    from faults.strangers import Strangers, as_json, problems, some, table

    folders.prepare()
    known, makers = (self_test.DOORS, self_test.MAKERS) if given.self_test else (doors.DOORS, folders.MAKERS)
    chosen = [door for door in known if given.only in f"{door.given}: {door.name}"]
    chosen = [door for door in chosen if door.share == 1 or not given.quick]
    start, found, wrong = time.monotonic(), [], []
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        drill = Strangers(Path(folder), makers, given.seconds)
        for name in dict.fromkeys(door.given for door in chosen):
            drill.make(name)
        for door in () if given.quick else chosen:
            if said := drill.honest(door):
                wrong.append(f"{door.given}: {door.name} fails though nothing is planted: {said}")
        every = drill.cases(chosen, given.seed)
        if given.self_test:
            every = [case for case in every if ".partial" not in case.entry]
        for case in every if given.cases is None else some(every, given.cases):
            if (one := drill.run(case)) is None:
                continue
            found.append(one)
            if one.problems and not given.json:
                print(f"[{len(found)}] {case}: {' '.join(one.problems[0])}", flush=True)
    if given.json:
        print(json.dumps(as_json(found)))
        return 0
    findings = sum(bool(one.problems) for one in found)
    print(table(found))
    seconds = time.monotonic() - start
    print(f"\n{len(found):,} cases of {len(every):,}, {findings} with a problem, {seconds:.0f} s")
    print("\n".join([*wrong, problems(found)]))
    return int(bool(findings or wrong))


def entered(given):
    """The functions that are called when all good examples are read, as JSON."""
    from faults.fuzz import Bench, make_examples
    from faults.read_calls import Entered
    from faults.readers import READERS

    with tempfile.TemporaryDirectory() as work:
        examples = make_examples(READERS, set(READERS), Path(work, "examples"))
        bench = Bench(READERS, examples, Path(work, "bench"))
        with Entered() as called:
            for name in READERS:
                bench.good(name)
    print(json.dumps(sorted(called.found)))
    return 0


def main():
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    drills = parser.add_subparsers(required=True)
    fuzzing = drills.add_parser("fuzz", help="damaged and forged files over every reader")
    fuzzing.set_defaults(drill=fuzz)
    fuzzing.add_argument("--cases", type=int, default=20_000)
    fuzzing.add_argument("--seed", type=int, default=0)
    fuzzing.add_argument("--only", default="", help="readers whose names contain this")
    fuzzing.add_argument("--keep", action="store_true", help="add what is found to the corpus")
    fuzzing.add_argument("--corpus", action="store_true", help="only what was found before")
    fuzzing.add_argument("--self-test", action="store_true", help="readers that fail in every way")
    fuzzing.add_argument("--json", action="store_true")
    fuzzing.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    killing = drills.add_parser("kills", help="kill -9, a power cut, a full disk before file operations")
    killing.set_defaults(drill=kills)
    killing.add_argument("--all", action="store_true", help="every operation of every work")
    killing.add_argument(
        "--points", type=int, default=2, help="operations of each work and kind, without --all"
    )
    killing.add_argument("--random", type=int, default=0, help="kills of each work at random times")
    killing.add_argument("--kinds", default="kill,power,full")
    killing.add_argument("--only", default="", help="work whose name contains this")
    killing.add_argument("--seed", type=int, default=0)
    killing.add_argument("--json", action="store_true")
    attacking = drills.add_parser(
        "service", help="idle connections, slow clients and bombs beside good clients"
    )
    attacking.set_defaults(drill=service)
    for name, number in {
        "idle": 2000,
        "slow": 64,
        "bombs": 50,
        "heavy": 4,
        "good": 32,
        "descriptors": 1024,
    }.items():
        attacking.add_argument(f"--{name}", type=int, default=number)
    attacking.add_argument("--seconds", type=float, default=60)
    attacking.add_argument(
        "--pause", type=float, default=1, help="seconds between two questions of a good client"
    )
    attacking.add_argument(
        "--tiny", dest="examples", action="store_false", help="a small model, not the examples"
    )
    planting = drills.add_parser(
        "strangers", help="links and pipes planted in folders from elsewhere, by every door"
    )
    planting.set_defaults(drill=strangers)
    planting.add_argument("--cases", type=int, help="at most so many, of every door; default is all")
    planting.add_argument(
        "--only", default="", help="doors such as 'index: selhn serve' whose names contain this"
    )
    planting.add_argument("--seed", type=int, default=0)
    planting.add_argument("--seconds", type=float, default=20, help="for a door; then it hangs")
    planting.add_argument(
        "--quick", action="store_true", help="only doors that are quick, and none unplanted"
    )
    planting.add_argument("--self-test", action="store_true", help="doors that do wrong in every way")
    planting.add_argument("--json", action="store_true")
    entering = drills.add_parser("entered", help="functions that the good examples reach")
    entering.set_defaults(drill=entered)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.reconfigure(errors="backslashreplace")
    raise SystemExit(given.drill(given))


if __name__ == "__main__":
    main()
