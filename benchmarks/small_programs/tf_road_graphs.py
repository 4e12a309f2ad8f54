"""Travel-time prediction on sampled pieces of a road network (graph network, custom loop)."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf


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


class RoadNetwork:
    """Crossings in the plane, roads between near ones; the sampler returns a neighbourhood."""

    def __init__(self, crossings=5000, seed=4):
        self.rng = np.random.default_rng(seed)
        place = self.rng.random((crossings, 2))
        order = np.argsort(place[:, 0] // 0.02 + place[:, 1])
        self.place = place[order].astype(np.float32)
        self.near = [np.unique(np.clip(i + self.rng.integers(-40, 40, 9), 0, crossings - 1)) for i in range(crossings)]
        self.speed = self.rng.uniform(0.3, 1.0, crossings).astype(np.float32)

    def sample(self, max_nodes=400, max_edges=1600):
        hubs = int(self.rng.choice([1, 6, 8], p=[0.15, 0.45, 0.4]))
        known, frontier = {}, list(self.rng.integers(0, len(self.near), hubs))
        for f in frontier:
            known.setdefault(int(f), len(known))
        src, dst = [], []
        for _ in range(3):
            following = []
            for a in frontier:
                for b in self.near[a]:
                    b = int(b)
                    if b not in known:
                        if len(known) >= max_nodes:
                            continue
                        known[b] = len(known)
                        following.append(b)
                    src.append(known[b])
                    dst.append(known[int(a)])
            frontier = following
        src, dst = np.array(src[:max_edges], np.int32), np.array(dst[:max_edges], np.int32)
        ids = np.fromiter(known, int)
        nodes = np.concatenate([self.place[ids] - self.place[ids[0]], self.speed[ids, None]], axis=1)
        span = nodes[src, :2] - nodes[dst, :2]
        edges = np.concatenate([span, np.linalg.norm(span, axis=1, keepdims=True)], axis=1).astype(np.float32)
        delay = edges[:, 2] / (0.5 * (nodes[src, 2] + nodes[dst, 2]))
        target = np.zeros(len(ids), np.float32)
        np.add.at(target, dst, delay)
        return nodes, edges, src, dst, target


class Dense(tf.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = tf.Variable(tf.random.normal((inputs, outputs), stddev=(2 / inputs) ** 0.5))
        self.b = tf.Variable(tf.zeros(outputs))

    def __call__(self, x):
        return tf.matmul(x, self.w) + self.b


class GraphModel(tf.Module):
    def __init__(self, width=48, rounds=2):
        super().__init__()
        self.enter, self.edge_in = Dense(3, width), Dense(3, width)
        self.message = [Dense(width, width) for _ in range(rounds)]
        self.update = [Dense(width, width) for _ in range(rounds)]
        self.leave = Dense(width, 1)

    def __call__(self, nodes, edges, src, dst):
        h, e = tf.nn.relu(self.enter(nodes)), self.edge_in(edges)
        count = tf.shape(nodes)[0]
        for message, update in zip(self.message, self.update):
            m = message(tf.nn.relu(tf.gather(h, src) + e))
            h = h + tf.nn.relu(update(tf.math.unsorted_segment_sum(m, dst, count)))
        return tf.squeeze(self.leave(h), -1)


class Momentum:
    def __init__(self, variables, lr, beta=0.9):
        self.variables, self.lr, self.beta = variables, lr, beta
        self.state = [tf.Variable(tf.zeros_like(v)) for v in variables]

    def apply(self, grads):
        grads, _ = tf.clip_by_global_norm(grads, 1.0)
        for v, s, g in zip(self.variables, self.state, grads):
            s.assign(self.beta * s + g)
            v.assign_sub(self.lr * s)


def main():
    tf.random.set_seed(4)
    roads = RoadNetwork()
    model = GraphModel()
    optimizer = Momentum(model.trainable_variables, 3e-3)

    @tf.function
    def train_step(nodes, edges, src, dst, target):
        with tf.GradientTape() as tape:
            error = model(nodes, edges, src, dst) - target
            loss = tf.reduce_mean(tf.abs(error))
        optimizer.apply(tape.gradient(loss, optimizer.variables))
        return loss

    meter, step, smooth = Meter(), 0, None
    while True:
        piece = [tf.convert_to_tensor(a) for a in roads.sample()]
        loss = float(train_step(*piece))
        smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
        step += 1
        if step % 100 == 0:
            print(f"step {step} mean absolute error {smooth:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
