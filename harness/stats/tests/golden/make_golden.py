#!/usr/bin/env python3
"""Expected values for pb-stats from other programs: scipy, statsmodels, pymannkendall, and numpy
code that follows the definition (never the crate's algorithm).

    python -m venv V && V/bin/pip install scipy==1.17.1 statsmodels==0.15.0 pymannkendall==1.4.3
    V/bin/python make_golden.py            # rewrites golden.txt beside this file

One case a line: `name; field=numbers; ...`. Numbers are written so that they read back exactly.
"""
import itertools
import pathlib

import numpy as np
import pymannkendall
import scipy
import statsmodels
from scipy import integrate, optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.diagnostic import acorr_ljungbox
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired
from statsmodels.tsa.stattools import acf

rng = np.random.default_rng(20261130)
lines = []


def case(name, **fields):
    def text(value):
        return " ".join(repr(float(v)) for v in np.atleast_1d(value))
    lines.append("; ".join([name] + [f"{k}={text(v)}" for k, v in fields.items()]))


def chi2():
    for df in (1, 2, 3.5, 10, 57, 400):
        for x in (0.01, 0.5, df * 0.8, df * 1.0, df * 1.6, df * 3 + 20):
            case("chi2", x=x, df=df, cdf=stats.chi2.cdf(x, df), tail=stats.chi2.sf(x, df))
        for p in (1e-6, 0.025, 0.5, 0.95, 1 - 1e-6):
            case("chi2_quantile", p=p, df=df, x=stats.chi2.ppf(p, df))


def equivalence():
    for n, shift, delta in ((5, 0.0, 1.0), (12, 0.3, 0.5), (30, -0.2, 0.3), (8, 2.0, 1.0)):
        a = rng.normal(10, 2, n)
        b = a + rng.normal(shift, 0.4, n)
        p, low, high = ttost_paired(b, a, -delta, delta)
        case("tost", a=a, b=b, delta=delta, p=p, p_lower=low[1], p_upper=high[1])
        # Ratios: the same test on logarithms, with the margin ln(1.05).
        p, low, high = ttost_paired(b, a, 1 / 1.05, 1.05, transform=np.log)
        case("tost_ratio", a=a, b=b, margin=0.05, p=p, p_lower=low[1], p_upper=high[1])


def multiplicity():
    for n in (1, 3, 12, 40):
        p = np.concatenate([rng.uniform(0, 0.02, n // 2), rng.uniform(0, 1, n - n // 2)])
        p[-1] = p[0]
        reject, adjusted, _, _ = multipletests(p, 0.05, method="holm")
        case("holm", p=p, adjusted=adjusted, reject=reject)


def power():
    for effect, n, alpha in ((0.5, 34, 0.05), (1.2, 8, 0.05), (0.9, 12, 0.01), (3.0, 4, 0.05)):
        case("power", effect=effect, n=n, alpha=alpha,
             power=TTestPower().power(effect, n, alpha, alternative="two-sided"))
    for n, target in ((6, 0.8), (10, 0.9), (24, 0.8)):
        # The noncentral t distribution is computed by integrating over the
        # sample deviation: statsmodels and scipy return NaN for large noncentrality.
        t, df = stats.t.isf(0.025, n - 1), n - 1

        def found(effect):
            shift = effect * np.sqrt(n)
            density = lambda s: stats.chi.pdf(s * np.sqrt(df), df) * np.sqrt(df)
            part = lambda s: density(s) * (stats.norm.cdf(shift - t * s)
                                           + stats.norm.cdf(-shift - t * s))
            return integrate.quad(part, 0, 1 + 12 / np.sqrt(2 * df), epsabs=1e-13, limit=300)[0]
        case("detectable", n=n, target=target,
             effect=optimize.brentq(lambda d: found(d) - target, 1e-3, 20, xtol=1e-12))
    for effect, sd, n, delta, alpha in ((0, 0.02, 8, 0.03, 0.05), (0.01, 0.02, 20, 0.03, 0.05),
                                        (0.0, 0.05, 5, 0.03, 0.05), (0.02, 0.01, 12, 0.03, 0.01)):
        t, df = stats.t.isf(alpha, n - 1), n - 1

        def shown(s):  # s: sample deviation; the mean must lie within delta - t s / sqrt(n)
            reach = delta - t * s / np.sqrt(n)
            mean = stats.norm(effect, sd / np.sqrt(n))
            inside = max(mean.cdf(reach) - mean.cdf(-reach), 0.0) if reach > 0 else 0.0
            return inside * stats.chi.pdf(s / sd * np.sqrt(df), df) * np.sqrt(df) / sd
        end = delta * np.sqrt(n) / t
        value, _ = integrate.quad(shown, 0, min(end, 8 * sd), epsabs=1e-12, limit=400)
        case("tost_power", effect=effect, sd=sd, n=n, delta=delta, alpha=alpha, power=value)


def ranks():
    # Interval = all shifts that the exact test of scipy does not reject, found at the jumps.
    for m, n in ((4, 4), (6, 9), (12, 7), (15, 15)):
        a, b = rng.normal(5, 1, m), rng.normal(5.6, 1, n)
        d = np.sort(np.subtract.outer(b, a).ravel())

        def p(shift):
            return stats.mannwhitneyu(b - shift, a, method="exact").pvalue
        kept = [v for v in d if p(v - 1e-9) > 0.05 or p(v + 1e-9) > 0.05]
        case("shift", a=a, b=b, point=np.median(d), low=min(kept), high=max(kept))
    for n in (6, 9, 14, 25):
        x = rng.normal(0.4, 1, n)
        w = np.sort([(x[i] + x[j]) / 2 for i in range(n) for j in range(i, n)])

        def p1(shift):
            return stats.wilcoxon(x - shift, method="exact").pvalue
        kept = [v for v in w if p1(v - 1e-9) > 0.05 or p1(v + 1e-9) > 0.05]
        case("walsh", x=x, point=np.median(w), low=min(kept), high=max(kept))


def delong():
    for m, n, shift, tied in ((6, 5, 0.5, False), (40, 30, 0.4, False), (25, 25, 1.5, True)):
        x, y = rng.normal(shift, 1, m), rng.normal(0, 1, n)
        if tied:
            x, y = np.round(x, 1), np.round(y, 1)
        kernel = np.array([[1.0 if xi > yj else 0.5 if xi == yj else 0.0 for yj in y] for xi in x])
        value = stats.mannwhitneyu(x, y).statistic / (m * n)
        assert abs(value - kernel.mean()) < 1e-12
        var = kernel.mean(1).var(ddof=1) / m + kernel.mean(0).var(ddof=1) / n
        case("auc", x=x, y=y, value=value, se=np.sqrt(var))


def counts():
    for k, n in ((0, 7), (3, 10), (999, 1000), (57, 2000), (50, 50)):
        ends = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        case("proportion", k=k, n=n, low=ends.low, high=ends.high)
    for lost, gained in ((1, 5), (12, 30), (0, 9), (210, 250)):
        case("mcnemar", lost=lost, gained=gained,
             p=mcnemar([[0, lost], [gained, 0]], exact=True).pvalue)


def series():
    for n, phi in ((30, 0.0), (200, 0.6), (500, -0.4)):
        x = np.zeros(n)
        for i in range(n):
            x[i] = phi * x[i - 1] + rng.normal()
        box = acorr_ljungbox(x, lags=[1, 5, 10])
        case("acf", x=x, rho=acf(x, nlags=10, fft=False))
        for lag in (1, 5, 10):
            case("ljung_box", x=x, lags=lag, q=box.lb_stat[lag], p=box.lb_pvalue[lag])


def trend():
    for n, slope, digits in ((10, 0.0, 9), (25, 0.05, 9), (40, 0.02, 1), (100, -0.01, 0)):
        x = np.round(slope * np.arange(n) + rng.normal(0, 0.6, n), digits)
        m = pymannkendall.original_test(x)
        s = stats.theilslopes(x, np.arange(n), 0.95)
        case("trend", x=x, s=m.s, variance=m.var_s, z=m.z, p=m.p, slope=s.slope,
             intercept=s.intercept, low=s.low_slope, high=s.high_slope)


def warm_up():
    for n, bump in ((60, 0.0), (203, 6.0), (400, 12.0)):
        x = 10 + bump * np.exp(-np.arange(n) / 20) + rng.normal(0, 1, n)
        batches = x[: n // 5 * 5].reshape(-1, 5).mean(1)
        k = len(batches)
        scores = [np.sum((batches[d:] - batches[d:].mean()) ** 2) / (k - d) ** 2
                  for d in range(k - 4)]
        d = int(np.argmin(scores))
        case("mser5", x=x, cut=5 * d, steady=2 * d <= k, statistic=scores[d])


def change():
    for n, step, stretch in ((40, 1.0, 1), (60, 0.0, 3), (90, 0.7, 5)):
        x = rng.normal(0, 1, n) + step * (np.arange(n) >= n // 3)
        c = x - x.mean()
        peak = np.abs(np.cumsum(c)[:-1])
        pieces, hits, rounds = c[: n // stretch * stretch].reshape(-1, stretch), 0, 40000
        tail = c[n // stretch * stretch:]
        for _ in range(rounds):
            y = np.concatenate([pieces[rng.permutation(len(pieces))].ravel(), tail])
            hits += np.abs(np.cumsum(y)[:-1]).max() >= peak.max() - 1e-9
        case("change", x=x, stretch=stretch, at=peak.argmax() + 1, statistic=peak.max(),
             p=(hits + 1) / (rounds + 1))


def spending():
    def bounds(shares, alpha, spent):
        """Solves look by look with scipy's multivariate normal distribution."""
        found, before = [], 0.0
        for k, t in enumerate(shares):
            part = np.array(shares[: k + 1])
            cov = np.sqrt(np.minimum.outer(part, part) / np.maximum.outer(part, part))
            total = spent(alpha, t)

            def stay(c):
                if k == 0:
                    return 1 - 2 * stats.norm.sf(c)
                edge = np.array(found + [c])
                return stats.multivariate_normal.cdf(edge, cov=cov, lower_limit=-edge, maxpts=400000,
                                                     abseps=1e-7, releps=1e-7)
            found.append(optimize.brentq(lambda c: 1 - stay(c) - total, 0.5, 8, xtol=1e-5))
            before = total
        return found

    def obf(alpha, t):
        return 4 * stats.norm.sf(stats.norm.isf(alpha / 4) / np.sqrt(t))

    def pocock(alpha, t):
        return alpha * np.log(1 + (np.e - 1) * t)
    for alpha, shares in ((0.05, (0.25, 0.5, 0.75, 1)), (0.1, (0.4, 0.7, 1)), (0.01, (0.5, 1))):
        case("obrien_fleming", alpha=alpha, shares=shares, z=bounds(shares, alpha, obf))
        case("pocock", alpha=alpha, shares=shares, z=bounds(shares, alpha, pocock))


class SplitMix64:
    """The generator of Steele, Lea and Flood (2014), and Lemire's (2019) unbiased index."""
    MASK = (1 << 64) - 1

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return z ^ (z >> 31)

    def index(self, bound):
        while True:
            product = self.next() * bound
            if product & self.MASK >= ((1 << 64) - bound) % bound:
                return product >> 64

    def uniform(self):
        return ((self.next() >> 11) + 0.5) / 2.0 ** 53


def rank(ordered, share):
    """Nearest rank, with products such as 0.07 * 100 taken for the whole number they mean."""
    place = share * len(ordered)
    near = round(place)
    return ordered[max(near if abs(place - near) < 1e-9 else int(np.ceil(place)), 1) - 1]


def percentiles():
    """Pooled percentiles of two arms over blocks by their definitions (concatenate, delete, sort),
    on the crate's stream of random numbers, so that the ends must agree to rounding."""
    rounds = 4000
    for n, size, p, confidence in ((8, 60, 0.5, 0.9), (12, 60, 0.95, 0.95), (20, 50, 0.99, 0.95)):
        machine = rng.normal(0, 0.1, n)
        a = np.exp(machine[:, None] + rng.normal(0, 0.4, (n, size)))
        b = np.exp(machine[:, None] + rng.normal(0.05, 0.4, (n, size)))

        def theta(index):
            pick = lambda arm: rank(np.sort(arm[index].ravel()), p)
            return np.log(pick(b) / pick(a))

        def jack(index):
            left = np.array([theta(np.delete(index, i)) for i in range(n)])
            return np.sqrt((n - 1) / n * np.sum((left - left.mean()) ** 2)), left
        whole, stream = np.arange(n), SplitMix64(9)
        point, (se, left) = theta(whole), jack(whole)
        draws = [np.array([stream.index(n) for _ in range(n)]) for _ in range(rounds)]
        values = np.sort([theta(d) for d in draws])
        below = (np.mean(values < point) + np.mean(values <= point)) / 2
        z0, d = stats.norm.ppf(below), left.mean() - left
        accel = np.sum(d ** 3) / (6 * np.sum(d ** 2) ** 1.5)
        tail = (1 - confidence) / 2
        t = stats.t.isf(tail, n - 1)
        reach = t * np.sqrt(n / (n - 1))
        bca = [rank(values, stats.norm.cdf(z0 + (z0 + z) / (1 - accel * (z0 + z))))
               for z in (-reach, reach)]
        shifts, errors = [theta(d) - point for d in draws], [jack(d)[0] for d in draws]
        # No shift is a root of 0 even where the resample has no error of its own.
        roots = np.sort([s / e if e > 1e-12 else np.sign(s) * 1e9 for s, e in zip(shifts, errors)])
        lower, upper = rank(roots, tail), rank(roots, 1 - tail)
        stream, bayes = SplitMix64(9), []
        for _ in range(rounds):
            w = -np.log([stream.uniform() for _ in range(n)])

            def weighted(arm):
                order = np.argsort(arm.ravel())
                share = np.cumsum(np.repeat(w, size)[order])
                return arm.ravel()[order[np.searchsorted(share / share[-1], p)]]
            bayes.append(np.log(weighted(b) / weighted(a)))
        bayes = np.sort(bayes)
        held = int(np.ceil(confidence * rounds))
        i = np.argmin(bayes[held - 1:] - bayes[: rounds - held + 1])
        case("percentile", a=a.ravel(), b=b.ravel(), blocks=n, p=p, confidence=confidence,
             resamples=rounds, point=np.exp(point), se=se,
             jackknife=np.exp([point - t * se, point + t * se]), bca=np.exp(bca),
             studentised=np.exp([point - upper * se, point - lower * se]),
             hdi=np.exp([bayes[i], bayes[i + held - 1]]))


for part in (chi2, equivalence, multiplicity, power, ranks, delong, counts, series, trend, warm_up,
             change, spending, percentiles):
    part()
header = (f"# made by make_golden.py with scipy {scipy.__version__}, statsmodels "
          f"{statsmodels.__version__}, pymannkendall {pymannkendall.__version__}, "
          f"numpy {np.__version__}")
path = pathlib.Path(__file__).with_name("golden.txt")
path.write_text("\n".join([header] + lines) + "\n")
print(f"{len(lines)} cases, {path.stat().st_size} bytes")
