"""What multiplies the surrogate of each token, without gradient: gates drop tokens, or whole responses; weights are
k = pi_proximal / mu, bounded in some way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .stabilizer import Gate, InRange, Judge, NonNegative, Positive, Scope, Weight
from .terms import Need

if TYPE_CHECKING:  # so that settings are read before torch is imported
    import torch.distributed as dist
    from torch import Tensor

    from .tokens import Tokens


def bernoulli_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(Bernoulli(p) || Bernoulli(q)) (Eq. app-kpop): what a sampled token says of two distributions, that it was
    drawn or another one. Never negative nor infinite, which rounding alone would not grant: a 1 of float32 may have
    been 2^-24 less."""
    log_p, log_q = log_p.clamp(max=-(2.0**-24)), log_q.clamp(max=-(2.0**-24))
    p, not_p, not_q = log_p.exp(), -log_p.expm1(), -log_q.expm1()
    drawn = (p * (log_p - log_q)).where(p > 0, 0.0)
    return (drawn + (not_p.xlogy(not_p) - not_p.xlogy(not_q))).clamp(min=0.0)


@dataclass(frozen=True)
class DPPO(Gate):
    """DPPO: drops outward tokens, A (r - 1) > 0, whose |pi - mu| is above delta, or whose KL(mu || pi) is above
    delta_kl; r = pi / mu. Eqs. app-bintv, app-dppo-mask."""

    divergence: Literal["tv", "kl"] = "tv"
    """The quantity by which an outward update is judged: |pi - mu| on the sampled token (the paper's runs), or the
    Bernoulli KL(mu || pi) of it."""
    delta: Positive = 1e-3
    """Divergence tv: largest |pi - mu| on the sampled token (a probability) at which an outward update is kept."""
    delta_kl: Positive = 0.05
    """Divergence kl: largest KL, in nats. The paper has none; this one is that of public DPPO code."""
    name = "dppo"

    @property
    def unread(self) -> tuple[str, ...]:
        return ("delta",) if self.divergence == "kl" else ("delta_kl",)

    def factor(self, t: Tokens) -> Tensor:
        d = t.log_pi - t.log_mu
        if self.divergence == "tv":
            within = t.log_mu.exp() * d.expm1().abs() <= self.delta
        else:
            within = bernoulli_kl(t.log_mu, t.log_pi) <= self.delta_kl
        return within | (t.A.sign() * d.sign() <= 0)


@dataclass(frozen=True)
class IcePop(InRange, Gate):
    """IcePop: keeps tokens whose k is in [low, high], once (form mask) or times k (form weight). Eq. app-icepop; the
    range is the usual one of public code."""

    low: Positive = 0.5
    """Smallest k that is kept."""
    high: Positive = 5.0
    """Largest k that is kept. The paper has no bounds; these are the usual ones of public code."""
    form: Literal["mask", "weight"] = "mask"
    """mask: k in range counts once; weight: it is multiplied by k, which needs a denominator other than mu."""
    name = "icepop"

    @property
    def weighs_by_mu(self) -> bool:
        return self.form == "weight"

    def factor(self, t: Tokens) -> Tensor:
        inside = self.holds(t.k)
        return t.k.where(inside, 0.0) if self.form == "weight" else inside


@dataclass(frozen=True)
class KPop(Gate):
    """KPop: keeps tokens whose Bernoulli KL between pi_proximal and mu is at most phi both ways. Eq. app-kpop."""

    phi: Positive = 0.1
    """Largest Bernoulli KL between pi_proximal and mu on the sampled token, either way, in nats. The paper has none;
    0.1 and 2.0 are found in public examples."""
    name = "kpop"

    def factor(self, t: Tokens) -> Tensor:
        pi, mu = t.log_proximal, t.log_mu
        return (bernoulli_kl(pi, mu) <= self.phi) & (bernoulli_kl(mu, pi) <= self.phi)


@dataclass(frozen=True)
class SeqClip(InRange, Gate):
    """SeqClip: keeps responses whose rho = exp(mean log(pi / mu)) is in [low, high]. Eq. app-seqclip; the range is
    GSPO's interval, made symmetric in the logarithm."""

    low: Positive = 0.8
    """Smallest ratio at which a response is kept."""
    high: Positive = 1.25
    """Largest ratio at which a response is kept. The paper has no bounds."""
    name, ratio = "seqclip", "sequence"

    def factor(self, t: Tokens) -> Tensor:
        return self.holds(t.mean(t.log_pi - t.log_mu).exp())


@dataclass(frozen=True)
class M2PO(Gate, Judge):
    """M2PO: S = M r A, M = 0 for the outward tokens (A d > 0) with the largest d^2 until the mean d^2 of the others is
    at most the threshold, else 1; in place of the clip. arXiv 2510.01161, Algorithm 1; tokens of equal d^2 are kept
    together or not at all. With `power` p, ours, d^2 / max(1, lag)^p stands for d^2."""

    threshold: Positive = 0.04
    """Largest mean of d^2 over the outward tokens that are kept (the paper's tau); with `power`, at lag 0 and 1."""
    scope: Scope = "step"
    """Tokens that are sorted together: the whole optimizer step on all ranks (the paper), or one micro-batch."""
    power: NonNegative = 0.0
    """Exponent of the lag by which the threshold grows, so that each token is judged by its own. 0: the paper's."""
    name, has_interval, only_over = "m2po", False, ("rollout",)

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("lags",) if self.power else ()

    def scores(self, t: Tokens) -> Tensor:
        """(m,) d^2 of the outward tokens."""
        return self._squares(t)[self._outward(t)]

    def threshold_of(self, scores: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """The largest d^2 up to which, in ascending order, the mean is at most the setting."""
        from .quantile import longest_prefix_end

        return longest_prefix_end(scores, self.threshold, group)

    def factor(self, t: Tokens) -> Tensor:
        t.measured["m2po/largest"] = t.threshold
        return ~self._outward(t) | (self._squares(t) <= t.threshold)

    def _outward(self, t: Tokens) -> Tensor:
        return t.A.sign() * t.d.detach().sign() > 0

    def _squares(self, t: Tokens) -> Tensor:
        squares = t.d.detach().square()
        return squares / t.lags.clamp(min=1.0) ** self.power if self.power else squares


@dataclass(frozen=True)
class MISGeo(InRange, Gate):
    """MIS-Geo: keeps responses whose exp(mean log k) is in [low, high]. verl's seq_mean_k1, SkyRL's and slime's
    geometric masks; others call it Geo-RS or Geo-Mask."""

    low: Positive = 0.99
    """Least ratio at which a response is kept."""
    high: Positive = 1.01
    """Largest ratio at which a response is kept. SkyRL's; verl's presets have 0.999 and 1.001."""
    name, place = "mis-geo", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        return self.holds(t.mean(t.log_k).exp())


@dataclass(frozen=True)
class OPSM(Gate):
    """OPSM: drops responses with A < 0 whose mean log(mu / pi) is above delta, pi the policy in training.
    DeepSeek-V3.2's off-policy sequence mask, arXiv 2512.02556, eq. 9."""

    delta: Positive = 1e-4
    """Largest mean of log mu - log pi over the response at which it is kept, in nats. slime's, and small:
    Trinity-RFT finds 0.05 to 0.2 reasonable, TRL's documentation has 0.5. The paper has no number."""
    name, place = "opsm", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        return (t.A >= 0) | (t.mean(t.log_mu - t.log_pi) <= self.delta)


@dataclass(frozen=True)
class TRMMax(Gate):
    """TRM-max: drops responses with a token whose (log k)^2 / 2 is above delta. arXiv 2512.23075, by the sampled tokens
    as verl's seq_max_k2. The paper wants it together with TRM-mean."""

    delta: Positive = 2.5
    """Largest (log k)^2 / 2 of a token at which its response is kept. An example of verl's: ratios within 0.107 and
    9.4."""
    name, place = "trm-max", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        return ~t.any(t.log_k.square() / 2 > self.delta)


@dataclass(frozen=True)
class TRMMean(Gate):
    """TRM-mean: drops responses whose mean e^x - 1 - x, x = log k, is above delta. arXiv 2512.23075, by the sampled
    tokens as verl's seq_mean_k3. The paper wants it together with TRM-max."""

    delta: Positive = 0.01
    """Largest mean of e^x - 1 - x at which a response is kept, in nats; x is held inside plus and minus 20. That of
    verl's presets."""
    name, place = "trm-mean", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        x = t.log_k.clamp(-20.0, 20.0)
        return t.mean(x.expm1() - x) <= self.delta


@dataclass(frozen=True)
class Veto(InRange, Gate):
    """Veto: drops responses with a token whose k is below low or above high (form response): slime's rs_veto_threshold,
    SkyRL's outlier mask. Form suffix: where A < 0, the tokens behind the first such one, after mu-GRPO, arXiv
    2605.17570, whose rule for that first one was not read."""

    low: Positive = 1e-4
    """Least k of a token at which its response is kept. slime's and SkyRL's."""
    high: Positive | None = None
    """Largest k of a token at which its response is kept. Unset: no bound; SkyRL suggests 100."""
    form: Literal["response", "suffix"] = "response"
    """What is dropped: the whole response, or of one with A < 0 what stands behind the token, without context
    parallelism."""
    name, place = "veto", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        broken = ~self.holds(t.k)
        return ~t.any(broken) if self.form == "response" else (t.A >= 0) | ~t.behind(broken)


@dataclass(frozen=True)
class ESTR(Gate):
    """ESTR: drops tokens whose d^2 / (H + floor) is above tau, d = log pi - log mu, H the entropy where the token was
    sampled. arXiv 2607.22186, which takes the engine's entropy; ours is the trainer's, since engines do not return
    it."""

    tau: Positive = 0.1
    """Largest d^2 over the entropy at which a token is kept. Ours, as is floor: the paper's appendix was not read."""
    floor: Positive = 0.1
    """Added to the entropy, in nats, so that tokens without a choice are not all dropped."""
    name, place, needs = "estr", "suffix", ("entropies",)

    def factor(self, t: Tokens) -> Tensor:
        return (t.log_pi - t.log_mu).square() <= self.tau * (t.entropies + self.floor)


# ------------------------------------------------------------------------------------------------------------- weights


@dataclass(frozen=True)
class TIS(Weight):
    """TIS: S w, w = min(k, cap). Eq. app-tis; the cap is that of public code."""

    cap: Positive = 2.0
    """Upper bound C of the weight."""
    name, place = "tis", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        w = t.k.clamp(max=self.cap)
        t.measured["tis/capped"] = w == self.cap
        return w


@dataclass(frozen=True)
class SeqTIS(Weight):
    """Seq-TIS: S w, w = min(W, cap), W the product of k over the response, whose logarithm is held inside plus and
    minus 20. verl's rollout_is sequence, slime's and SkyRL's sequence TIS. Long responses leave any range."""

    cap: Positive = 2.0
    """Upper bound of the weight. verl's; SkyRL has 5, TRL 3."""
    form: Literal["clamp", "mask"] = "clamp"
    """Above the cap: clamp: the weight is the cap; mask: it is 0, as by default in TRL."""
    name, place = "seq-tis", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        W = t.sum(t.log_k).clamp(-20.0, 20.0).exp()
        return W.clamp(max=self.cap) if self.form == "clamp" else W.where(self.cap >= W, 0.0)


@dataclass(frozen=True)
class SeqMaskTIS(InRange, Weight):
    """Seq-Mask-TIS: S w, w = k in responses whose exp(mean log k) is in [low, high], else 0. OpenRLHF's and NeMo-RL's
    public code; the range is that of MIS-Geo."""

    low: Positive = 0.99
    """Least geometric mean ratio at which a response is kept."""
    high: Positive = 1.01
    """Largest geometric mean ratio at which a response is kept; NeMo-RL's are 0.999 and 1.002."""
    name, place = "seq-mask-tis", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        return t.k.where(self.holds(t.mean(t.log_k).exp()), 0.0)


@dataclass(frozen=True)
class Decoupled(Weight):
    """Decoupled PPO: S w, w = k up to cap, else 0 (form mask) or cap (form clamp), the clip on pi / pi_proximal.
    arXiv 2505.24298 and AReaL's public code. The mask is IcePop's weight with low 0, the clamp is TIS."""

    cap: Positive = 5.0
    """Largest pi_proximal / mu. It was AReaL's default, which now filters nothing unless told."""
    form: Literal["mask", "clamp"] = "mask"
    """Above the cap: mask: the weight is 0; clamp: it is the cap."""
    name, place = "decoupled", "suffix"

    def factor(self, t: Tokens) -> Tensor:
        return t.k.clamp(max=self.cap) if self.form == "clamp" else t.k.where(t.k <= self.cap, 0.0)
