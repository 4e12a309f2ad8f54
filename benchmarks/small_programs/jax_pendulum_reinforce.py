"""Policy gradient on a batch of simulated pendulums."""
import argparse
import os
import time

import jax
import jax.numpy as jnp


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds):
        self.seconds = float(os.environ.get("PROGRAM_SECONDS", seconds))
        self.start, self.count, self.mark = None, 0, None

    def step(self, n=1):
        self.last = time.perf_counter()
        self.count += n
        if self.start is None:
            self.start = self.last
        if self.mark is None and self.last - self.start > 0.1 * self.seconds:
            self.mark = (self.count, self.last)
        return self.last - self.start < self.seconds

    def report(self):
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {self.last - since:.3f}")

def init(key, hidden=64):
    k1, k2 = jax.random.split(key)
    return {"w1": jax.random.normal(k1, (3, hidden)) * 0.5, "b1": jnp.zeros(hidden),
            "w2": jax.random.normal(k2, (hidden, 1)) * 0.1, "logstd": jnp.zeros(1)}


def observe(state):
    return jnp.stack([jnp.cos(state[:, 0]), jnp.sin(state[:, 0]), state[:, 1]], axis=1)


def policy(params, obs):
    return jnp.tanh(obs @ params["w1"] + params["b1"]) @ params["w2"]


@jax.jit
def env_step(params, state, key):
    obs = observe(state)
    action = policy(params, obs) + jnp.exp(params["logstd"]) * jax.random.normal(key, (len(state), 1))
    torque = 2 * jnp.tanh(action[:, 0])
    angle, speed = state[:, 0], state[:, 1]
    reward = -(((angle + jnp.pi) % (2 * jnp.pi) - jnp.pi) ** 2 + 0.1 * speed ** 2 + 0.001 * torque ** 2)
    speed = jnp.clip(speed + (15 * jnp.sin(angle) + 3 * torque) * 0.05, -8, 8)
    return jnp.stack([angle + speed * 0.05, speed], axis=1), (obs, action, reward)


def rollout(params, state, key, length):
    history = []
    for k in jax.random.split(key, length):
        state, record = env_step(params, state, k)
        history.append(record)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *history)


def loss_fn(params, obs, action, advantage):
    z = (action - policy(params, obs)) / jnp.exp(params["logstd"])
    logp = -0.5 * z ** 2 - params["logstd"]
    return -jnp.mean(logp[..., 0] * advantage)


@jax.jit
def update(params, obs, action, reward):
    def backward(ret, r):
        ret = r + 0.97 * ret
        return ret, ret
    _, returns = jax.lax.scan(backward, jnp.zeros(reward.shape[1]), reward, reverse=True)
    advantage = (returns - returns.mean(1, keepdims=True)) / (returns.std() + 1e-6)
    grads = jax.grad(loss_fn)(params, obs, action, advantage)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), reward.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, default=128)
    parser.add_argument("--length", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    key = jax.random.key(0)
    params = init(key)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        key, k1, k2 = jax.random.split(key, 3)
        state = jax.random.uniform(k1, (args.envs, 2), minval=-1.0, maxval=1.0)
        obs, action, reward = rollout(params, state, k2, args.length)
        params, mean = update(params, obs, action, reward)
        step += 1
        if step % 50 == 0:
            print(f"update {step} reward {float(mean):.3f}")
        mean.block_until_ready()
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
