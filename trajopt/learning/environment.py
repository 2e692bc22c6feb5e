r"""An environment for learning, made of a `System`: one control after another, a reward for each, episodes that end.

    environment = Environment("balance", system, reward=sum([r.Posture(weight=2.0), r.Control(weight=0.1)]), limit=200,
                              initial=around(model, model.keyframes["upright"], position=0.1))
    state, observation = environment.reset(key)
    state, outcome = environment.step(state, action)

The compiled core steps a batch that `jax.vmap` makes in one call, and derivatives pass through `step` in the gradient mode of the
system. What follows a truncated episode still has a value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from trajopt.dynamics.contact.laws.base import Law
from trajopt.dynamics.copies import WithoutCaches
from trajopt.dynamics.model import Model
from trajopt.dynamics.state import State, StepInfo
from trajopt.dynamics.system import PARAMETERS, System
from trajopt.errors import OptionError, UnknownNameError
from trajopt.names import closest
from trajopt.problems.residuals.base import Residual, StepOutcome, Terms, is_task, normalised

SHARPNESS = "kappa"  # of smoothed contact, which an episode may scale as it does the leaves of a model
FACTORS = (*PARAMETERS, "actuation", SHARPNESS)
ALIVE, STATE = "alive", "state"  # names beside those of the reward's terms


@dataclasses.dataclass(frozen=True)
class Moment:
    """What an environment's functions are given.

    Attributes:
        model: the model, with the factors of the episode.
        x: the state.
        action: the action that acts; before the first one: zeros.
        time (s): since the episode began.
        drawn: what was drawn for the episode.
    """

    model: Model
    x: State
    action: Float[Array, " na"]
    time: Float[Array, ""]
    drawn: Float[Array, " nd"]


# (moment before, u, moment after) -> the terms of the reward by name
RewardFunction = Callable[[Moment, Float[Array, " nu"], Moment], Mapping[str, Float[Array, ""]]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EnvironmentState:
    """Where an episode is.

    Attributes:
        x: the state.
        steps: number of actions taken.
        action: the last of them.
        drawn: what was drawn for the episode.
        factors: of the model's parameters, by name.
        key: of the draws to come.
    """

    x: State
    steps: Int[Array, "*b"]
    action: Float[Array, "*b na"]
    drawn: Float[Array, "*b nd"]
    factors: dict[str, Float[Array, "*b"]]
    key: UInt32[Array, "*b 2"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an action led to.

    Attributes:
        observation: after the action.
        reward: of the action.
        terms: of the reward, by name.
        terminated: whether the episode ended by itself.
        truncated: whether it ended because it was as long as it may be.
        x: the state reached.
        fault: which term of the reward is the first that is not finite (`Environment.fault_names`); -1: none.
    """

    observation: Float[Array, "*b no"]
    reward: Float[Array, "*b"]
    terms: dict[str, Float[Array, "*b"]]
    terminated: Bool[Array, "*b"]
    truncated: Bool[Array, "*b"]
    x: State
    fault: Int[Array, "*b"]

    @property
    def done(self) -> Bool[Array, "*b"]:
        """Whether the episode ended."""
        return self.terminated | self.truncated


def share_of_range(moment: Moment) -> Float[Array, " nu"]:
    """Controls between the motors' limits, -1 being the lower one and 1 the upper."""
    lower, upper = (jnp.asarray(a, moment.action.dtype) for a in (moment.model.control_lower, moment.model.control_upper))
    return lower + 0.5 * (moment.action + 1.0) * (upper - lower)


def whole_state(moment: Moment) -> Float[Array, " no"]:
    """q, then v."""
    return jnp.concatenate([moment.x.q, moment.x.v])


def nothing_drawn(key: UInt32[Array, "2"]) -> Float[Array, "0"]:
    """Episodes that differ by their initial states alone."""
    return jnp.zeros(0)


@dataclasses.dataclass(frozen=True)
class Environment(WithoutCaches):
    """A task for a policy, made of a `System`: actions, observations, a reward and episodes.

    An action, in [-1, 1] for each entry, becomes a control and is held for `substeps` steps of the system. The reward is minus
    the cost of a list of residuals, $-1/2 |rows|^2$ each, at the state reached and the control that led there (residuals of what
    a step finds: at the last step taken), or what a function returns. An episode is terminated where `terminated` says so and
    truncated after `limit` actions. All methods are those of one environment and pure: `jax.vmap` makes a batch of them.

    Options:
        name: what the environment is called, in messages and files.
        system: the `System`.
        reward: residuals, or a function of the moments before and after the last step of an action and of its control that
            returns the terms of the reward by name.
        limit: actions of an episode, after which it is truncated.
        initial: key -> the state in which an episode begins.
        substeps: steps of the system that an action is held for.
        penalties: a function as `reward` may be one, whose terms are part of every reward beside those of residuals.
        bonus: part of every reward, named "alive".
        control: moment -> u. Default: the share of the motors' range that the action says.
        actions: number of entries of an action. Default: one for each control.
        observe: moment -> observation. Default: the whole state.
        terminated: moment -> whether it ends the episode.
        drawn: key -> numbers that the episode is about, such as a commanded velocity; they are in `Moment.drawn`.
        force: moment -> generalised force (nv,) beside the motors.
        factors: {parameter of the model: (least, most)}, factors drawn for each episode; "kappa": of the sharpness of
            `SmoothedContact`, without effect under other laws.
        success: (states of an episode, from the first on, the number of actions before it was terminated, what was drawn) ->
            whether it reached what the task is about.

    Raises `OptionError` or `UnknownNameError` on construction, naming the argument.
    """

    name: str
    system: System
    reward: Residual | Terms | RewardFunction
    limit: int
    initial: Callable[[Any], State]
    _: dataclasses.KW_ONLY
    substeps: int = 1
    penalties: RewardFunction | None = None
    bonus: float = 0.0
    control: Callable[[Moment], Any] = share_of_range
    actions: int | None = None
    observe: Callable[[Moment], Any] = whole_state
    terminated: Callable[[Moment], Any] | None = None
    drawn: Callable[[Any], Any] = nothing_drawn
    force: Callable[[Moment], Any] | None = None
    factors: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    success: Callable[[State, Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        where = f"environment '{self.name}': "
        if not isinstance(self.system, System):
            raise OptionError(f"{where}system is {type(self.system).__name__}, expected a System")
        for name in ("limit", "substeps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise OptionError(f"{where}{name} is {value!r}, expected a whole number of at least 1")
        if not is_task(self.reward) and not callable(self.reward):
            raise OptionError(f"{where}reward is {self.reward!r}; expected residuals, or a function of an action's outcome")
        if is_task(self.reward):
            object.__setattr__(self, "reward", normalised(self.reward, self.system, self.dtype, where, False))
        _check_factors(where, self.factors)
        if self.control is share_of_range:
            _check_ranges(where, self.system.model, self.actions)
        self.fault_names  # noqa: B018  what does not fit together is found here, before anything is compiled

    @property
    def dtype(self) -> Any:
        """The precision of the system."""
        return self.system.model.mass.dtype

    @property
    def dt(self) -> float:
        """Seconds between two actions."""
        return self.substeps * float(self.system.dt)

    @property
    def na(self) -> int:
        """Entries of an action."""
        return self.system.nu if self.actions is None else self.actions

    @functools.cached_property
    def no(self) -> int:
        """Entries of an observation."""
        return int(jax.eval_shape(self.reset, _A_KEY)[1].shape[0])

    @functools.cached_property
    def fault_names(self) -> tuple[str, ...]:
        """The terms of the reward in the order of `Outcome.fault`, and "state" for what the system reached."""
        state, _ = jax.eval_shape(self.reset, _A_KEY)
        action = jax.ShapeDtypeStruct((self.na,), self.dtype)
        return (*sorted(jax.eval_shape(self.step, state, action)[1].terms), STATE)

    def fault_at(self, fault: int, step: int) -> str:
        """What an `Outcome.fault` at a step of an episode says, as the beginning of a sentence."""
        name = self.fault_names[fault]
        what = "the state that the system reached" if name == STATE else f"the term '{name}' of the reward"
        return f"environment '{self.name}': {what} is not finite at step {step} of an episode"

    def with_gradient(self, gradient: str) -> Environment:
        """The environment whose steps have derivatives in another gradient mode."""
        return dataclasses.replace(self, system=dataclasses.replace(self.system, gradient=gradient))

    def with_contact(self, contact: Law, dt: float | None = None) -> Environment:
        """The environment whose system steps under another contact law; dt (s): of its steps, a whole part of an action's time.

        Without dt steps are as long as they are. Raises `OptionError`.
        """
        step = float(self.system.dt) if dt is None else dt
        substeps = max(round(self.dt / step), 1)
        if abs(substeps * step - self.dt) > 1e-9:
            raise OptionError(f"dt is {dt}; expected a whole part of the {self.dt:g} s between two actions of '{self.name}'")
        system = dataclasses.replace(self.system, contact=contact, dt=step, rho=None)
        return dataclasses.replace(self, system=system, substeps=substeps)

    def reset(self, key: UInt32[Array, "2"]) -> tuple[EnvironmentState, Float[Array, " no"]]:
        """The beginning of an episode, and what is observed there."""
        later, at, about, *factors = jax.random.split(key, 3 + len(self.factors))
        x, drawn = self.initial(at), jnp.asarray(self.drawn(about), self.dtype)
        scaled = {
            name: jax.random.uniform(own, (), self.dtype, *self.factors[name])
            for name, own in zip(sorted(self.factors), factors, strict=True)
        }
        state = EnvironmentState(x, jnp.zeros((), int), jnp.zeros(self.na, self.dtype), drawn, scaled, later)
        return state, self.observation(state)

    def observation(self, state: EnvironmentState) -> Float[Array, " no"]:
        """What is observed in a state."""
        return self.observe(self._moment(self._system(state.factors, None).model, state, state.x, state.action, state.steps))

    def step(
        self, state: EnvironmentState, action: Float[Array, " na"], kappa: Float[Array, ""] | None = None
    ) -> tuple[EnvironmentState, Outcome]:
        """The state after an action, whether the episode is over or not, and what happened. Actions are not clipped.

        kappa (1/m): sharpness of smoothed contact, in place of the system's own.
        """
        system = self._system(state.factors, kappa)
        x, u, x_next, info = self._held(system, state, action)
        last = self._time(state.steps) + (self.substeps - 1) * jnp.asarray(system.dt, self.dtype)
        before = Moment(system.model, x, state.action, last, state.drawn)
        after = self._moment(system.model, state, x_next, action, state.steps + 1)
        terms = self._terms(system, before, u, after, info)
        reward = functools.reduce(jnp.add, terms.values())
        over = jnp.zeros((), bool) if self.terminated is None else jnp.asarray(self.terminated(after))
        reached = EnvironmentState(x_next, state.steps + 1, action, state.drawn, state.factors, state.key)
        outcome = Outcome(
            self.observe(after), reward, terms, over, ~over & (reached.steps >= self.limit), x_next, _first_fault(terms, x_next)
        )
        return reached, outcome

    def step_or_reset(
        self, state: EnvironmentState, action: Float[Array, " na"], kappa: Float[Array, ""] | None = None
    ) -> tuple[EnvironmentState, Float[Array, " no"], Outcome]:
        """`step`, and where the episode is over the beginning of the next one: the state and the observation to go on from.

        `Outcome.observation` is what was observed before that.
        """
        reached, outcome = self.step(state, action, kappa)
        fresh, first = self.reset(state.key)
        chosen = jax.tree.map(functools.partial(jnp.where, outcome.done), fresh, reached)
        return chosen, jnp.where(outcome.done, first, outcome.observation), outcome

    def reward_of(self, before: Moment, u: Float[Array, " nu"], after: Moment) -> Float[Array, ""]:
        """The reward of an action between two moments however the one led to the other.

        Residuals of what a step finds ask a step of the system from the moment before.
        """
        info = self.system.step(before.x, u)[1] if self._asks_the_step else None
        return functools.reduce(jnp.add, self._terms(self.system, before, u, after, info).values())

    @property
    def _asks_the_step(self) -> bool:
        return is_task(self.reward) and any(term.needs_step for term in self.reward.terms)

    def _system(self, factors: Mapping[str, Any], kappa: Any) -> System:
        system = self.system
        if factors:
            model = system.model
            leaves = {name: getattr(model, name) * factor for name, factor in factors.items() if name != SHARPNESS}
            system = dataclasses.replace(system, model=model.replace(**leaves))
            own = system.contact.contact_sharpness(system.kappa)
            if kappa is None and own is not None:
                kappa = own * factors.get(SHARPNESS, 1.0)
        return system if kappa is None else dataclasses.replace(system, kappa=kappa)

    def _moment(self, model: Model, state: EnvironmentState, x: State, action: Any, steps: Any) -> Moment:
        return Moment(model, x, action, self._time(steps), state.drawn)

    def _time(self, steps: Any) -> Any:
        return jnp.asarray(self.dt, self.dtype) * steps.astype(self.dtype)

    def taken(self, state: EnvironmentState, action: Float[Array, " na"]) -> tuple[State, Float[Array, "k nu"], StepInfo]:
        """The k steps that an action is held for: the state reached by each, its control, and what it found."""
        substep = self._substep(self._system(state.factors, None), state, action)

        def body(x: State, k: Any) -> tuple[State, Any]:
            x_next, (_, u, info) = substep(x, k)
            return x_next, (x_next, u, info)

        return jax.lax.scan(body, state.x, jnp.arange(self.substeps, dtype=self.dtype))[1]

    def _held(self, system: System, state: EnvironmentState, action: Any) -> tuple[State, Any, State, StepInfo | None]:
        """The last of the steps that an action is held for: the state before it, control, state after it, and what it found."""
        substep = self._substep(system, state, action)

        def body(x: State, k: Any) -> tuple[State, Any]:
            x_next, (x, u, info) = substep(x, k)
            return x_next, (x, u, info if self._asks_the_step else None)

        if self.substeps == 1:
            x_next, last = body(state.x, jnp.zeros((), self.dtype))
        else:
            x_next, taken = jax.lax.scan(body, state.x, jnp.arange(self.substeps, dtype=self.dtype))
            last = jax.tree.map(lambda a: a[-1], taken)
        x, u, info = last
        return x, u, x_next, info

    def _substep(self, system: System, state: EnvironmentState, action: Any) -> Callable[[State, Any], tuple[State, Any]]:
        """(x, k) -> x after step k of an action, and the state before it, the control, what it found."""
        dt, begin = jnp.asarray(system.dt, self.dtype), self._time(state.steps)

        def substep(x: State, k: Any) -> tuple[State, Any]:
            moment = Moment(system.model, x, action, begin + k * dt, state.drawn)
            u = jnp.asarray(self.control(moment), self.dtype)
            force = None if self.force is None else jnp.asarray(self.force(moment), self.dtype)
            x_next, info = system.step(x, u, force=force)
            return x_next, (x, u, info)

        return substep

    def _terms(self, system: System, before: Moment, u: Any, after: Moment, info: StepInfo | None) -> dict[str, Any]:
        terms: dict[str, Any] = {}
        if isinstance(self.reward, Residual | Terms):
            taken = None if info is None else (after.x, info)
            outcomes = StepOutcome(system, before.x, u, taken), StepOutcome(system, after.x, u)
            for term in self.reward.terms:
                moment, step = (before, outcomes[0]) if term.needs_step else (after, outcomes[1])
                rows = term(moment.x, u, moment.time, step)
                terms[term.label] = -0.5 * jnp.vdot(rows, rows)
        for function in (self.reward, self.penalties):
            if function is not None and not isinstance(function, Residual | Terms):
                terms |= {name: jnp.asarray(value, self.dtype) for name, value in function(before, u, after).items()}
        return terms | {ALIVE: jnp.asarray(self.bonus, self.dtype)} if self.bonus else terms


_A_KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def _first_fault(terms: Mapping[str, Any], x: State) -> Any:
    """Index of the first that is not finite: of the state before the terms, which are not finite where it is not."""
    of_state = jnp.isfinite(x.q).all() & jnp.isfinite(x.v).all()
    finite = jnp.stack([*(jnp.isfinite(terms[name]) for name in sorted(terms)), of_state])
    first = jnp.where(finite[-1], jnp.argmin(finite), len(terms))
    return jnp.where(finite.all(), -1, first)


def _check_factors(where: str, factors: Mapping[str, tuple[float, float]]) -> None:
    for name, bounds in factors.items():
        if name not in FACTORS:
            raise UnknownNameError(f"{where}factors names no leaf '{name}' of a model{closest(name, FACTORS)}")
        if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1] < np.inf:
            raise OptionError(f"{where}factors of '{name}' are {bounds}; expected the least and the most, both positive")


def _check_ranges(where: str, model: Model, actions: int | None) -> None:
    limits = np.concatenate([np.asarray(model.control_lower), np.asarray(model.control_upper)])
    if not np.isfinite(limits).all():
        raise OptionError(f"{where}motors of model '{model.name}' have no range to take shares of; give control=...")
    if actions not in (None, model.nu):
        raise OptionError(f"{where}actions is {actions}, and without control=... it is one a motor, {model.nu}")
