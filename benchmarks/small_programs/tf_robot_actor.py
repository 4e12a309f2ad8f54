"""Deterministic actor and critic for a planar three-joint arm reaching for targets (replayed moves)."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
from tensorflow import keras


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds=40):
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


JOINTS, BATCH, GAMMA, TAU = 3, 256, 0.97, 0.005


class ReachReplay:
    """Moves of a noisy hand-written controller."""

    def __init__(self, size=40_000, seed=0):
        rng = np.random.default_rng(seed)
        self.rng = rng
        angles = rng.uniform(-np.pi, np.pi, (size, JOINTS))
        target = rng.uniform(-2, 2, (size, 2))
        action = rng.uniform(-1, 1, (size, JOINTS))
        after = angles + 0.15 * action
        self.obs = self.observation(angles, target)
        self.action = action.astype("float32")
        self.following = self.observation(after, target)
        gap = np.linalg.norm(self.hand(after) - target, axis=1)
        self.reward = (-gap - 0.02 * np.square(action).sum(1)).astype("float32")
        self.done = (gap < 0.1).astype("float32")

    @staticmethod
    def hand(angles):
        total = np.cumsum(angles, axis=1)
        return np.stack([np.cos(total).sum(1), np.sin(total).sum(1)], axis=1)

    @classmethod
    def observation(cls, angles, target):
        hand = cls.hand(angles)
        return np.concatenate([np.cos(angles), np.sin(angles), hand, target, target - hand], 1).astype("float32")

    def batch(self, count):
        pick = self.rng.integers(0, len(self.obs), count)
        arrays = (self.obs, self.action, self.reward, self.following, self.done)
        return [tf.constant(a[pick]) for a in arrays]


def mlp(inputs, outputs, last=None, width=192):
    return keras.Sequential([
        keras.Input((inputs,)),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.Dense(width, activation="relu"),
        keras.layers.Dense(outputs, activation=last),
    ])


class Agent:
    def __init__(self, obs):
        self.actor, self.critic = mlp(obs, JOINTS, "tanh"), mlp(obs + JOINTS, 1)
        self.actor_target, self.critic_target = mlp(obs, JOINTS, "tanh"), mlp(obs + JOINTS, 1)
        self.actor_target.set_weights(self.actor.get_weights())
        self.critic_target.set_weights(self.critic.get_weights())
        self.actor_opt = keras.optimizers.SGD(1e-3, momentum=0.9)
        self.critic_opt = keras.optimizers.SGD(1e-3, momentum=0.9)

    def q(self, net, obs, action):
        return tf.squeeze(net(tf.concat([obs, action], axis=1)), axis=1)

    @tf.function
    def update(self, obs, action, reward, following, done):
        goal = reward + GAMMA * (1 - done) * self.q(self.critic_target, following, self.actor_target(following))
        with tf.GradientTape(persistent=True) as tape:
            critic_loss = tf.reduce_mean(tf.square(self.q(self.critic, obs, action) - goal))
            actor_loss = -tf.reduce_mean(self.q(self.critic, obs, self.actor(obs)))
        critic_grads = tape.gradient(critic_loss, self.critic.trainable_variables)
        actor_grads = tape.gradient(actor_loss, self.actor.trainable_variables)
        del tape
        self.critic_opt.apply_gradients(zip(critic_grads, self.critic.trainable_variables))
        self.actor_opt.apply_gradients(zip(actor_grads, self.actor.trainable_variables))
        for net, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
            for v, t in zip(net.trainable_variables, target.trainable_variables):
                t.assign_add(TAU * (v - t))
        return critic_loss, actor_loss


def main():
    keras.utils.set_random_seed(0)
    replay = ReachReplay()
    agent = Agent(replay.obs.shape[1])
    meter, step = Meter(), 0
    while True:
        critic_loss, actor_loss = agent.update(*replay.batch(BATCH))
        step += 1
        if step % 200 == 0:
            print(f"step {step} critic {float(critic_loss):.4f} actor {float(actor_loss):.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
