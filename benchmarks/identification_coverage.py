"""Do the intervals of `identify` hold? Random recordings of the examples, each seed with a true system of its own.

    python benchmarks/identification_coverage.py [EXAMPLE ...] [--seeds 50] [--first 0] [--json FILE]

Printed for each example: the share of intervals of 95 % that hold the true value, over all parameters and seeds, the root mean
square of the errors in claimed deviations (1 is right), and processor time a fit.
"""

import argparse
import time

from measure import banner, begin, markdown, write_json


def judged(name: str, seeds: range) -> dict:
    import numpy as np

    from trajopt.estimation import examples, identify

    inside, errors, seconds, lost = [], [], [], 0
    for seed in seeds:
        example = examples.simulate(name, seed)
        start = time.process_time()
        fit = identify(example.system, example.recordings, example.parameters, example.sensors, seed=seed)
        seconds.append(time.process_time() - start)
        known = np.isfinite(fit.deviations)
        lost += int((~known).sum())
        inside.append(((fit.intervals[:, 0] <= example.truth) & (example.truth <= fit.intervals[:, 1]))[known])
        errors.append(((fit.values - example.truth) / fit.deviations)[known])
        held = f"{inside[-1].sum()} of {inside[-1].size} intervals hold"
        print(f"{name}, seed {seed}: {held}, errors in deviations {errors[-1].round(1)}, {seconds[-1]:.0f} s", flush=True)
    all_errors = np.concatenate(errors)
    return {
        "example": name, "seeds": len(seeds), "values": int(all_errors.size), "not_determined": lost,
        "held": float(np.mean(np.concatenate(inside))), "rms": float(np.sqrt(np.mean(all_errors**2))),
        "seconds": float(np.median(seconds)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", default=["sliding-box", "arm", "tosses"])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--json")
    options = begin(parser)
    print(banner())
    rows = [judged(name, range(options.first, options.first + options.seeds)) for name in options.examples]
    head = ("example", "seeds", "values", "not determined", "in the interval of 95 %", "rms of errors in deviations", "s a fit")
    counts = [tuple(str(r[key]) for key in ("example", "seeds", "values", "not_determined")) for r in rows]
    shares = [(f"{100 * r['held']:.0f} %", f"{r['rms']:.2f}", f"{r['seconds']:.0f}") for r in rows]
    print(markdown(head, [a + b for a, b in zip(counts, shares)]))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
