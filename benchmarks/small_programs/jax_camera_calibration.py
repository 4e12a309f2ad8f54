"""Camera calibration: Gauss-Newton (Levenberg-Marquardt) fits of lens and pose to board corners."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np


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


def board(rows=5, columns=6, pitch=0.07):
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    flat = np.stack([(c - columns / 2) * pitch, (r - rows / 2) * pitch, np.zeros_like(r)], -1)
    return jnp.asarray(flat.reshape(-1, 3), jnp.float32)


def rotate(w, points):
    """Rodrigues' formula."""
    angle = jnp.sqrt(jnp.sum(w * w) + 1e-12)
    axis = w / angle
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    along = points @ axis
    return points * cos + jnp.cross(axis, points) * sin + along[:, None] * axis * (1 - cos)


def project(theta, points):
    """theta: focal length 2, centre 2, radial distortion 3, tangential 2, rotation 3, translation 3."""
    focal, centre, k, tangential, w, shift = jnp.split(theta, [2, 4, 7, 9, 12])
    camera = rotate(w, points) + shift + jnp.array([0.0, 0.0, 1.0])
    x = camera[:, :2] / camera[:, 2:]
    r2 = jnp.sum(x * x, axis=1, keepdims=True)
    radial = 1 + k[0] * r2 + k[1] * r2 ** 2 + k[2] * r2 ** 3
    cross = 2 * x[:, :1] * x[:, 1:]
    bend = tangential * cross + tangential[::-1] * (r2 + 2 * x * x)
    return (focal + 1) * (x * radial + bend) + centre


def residuals(theta, points, seen):
    return (project(theta, points) - seen).reshape(-1)


def refine(theta, points, seen):
    """Eight damped Gauss-Newton steps for one photograph."""

    def step(carry, _):
        theta, damping = carry
        r = residuals(theta, points, seen)
        jacobian = jax.jacrev(residuals)(theta, points, seen)
        normal = jacobian.T @ jacobian
        delta = jnp.linalg.solve(normal + damping * jnp.eye(len(theta)), jacobian.T @ r)
        trial = theta - delta
        better = jnp.sum(residuals(trial, points, seen) ** 2) < jnp.sum(r ** 2)
        theta = jnp.where(better, trial, theta)
        damping = jnp.where(better, damping * 0.3, damping * 5.0)
        return (theta, damping), jnp.sqrt(jnp.mean(r ** 2))

    (theta, _), history = jax.lax.scan(step, (theta, jnp.float32(1e-3)), None, length=8)
    return theta, history


refine_all = jax.jit(jax.vmap(refine, in_axes=(0, None, 0)))


class Photographs:
    """Noisy pictures of the board from random places with random lenses."""

    def __init__(self, points, noise=3e-4, seed=0, together=16):
        self.points, self.noise, self.together = points, noise, together
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        spread = np.array([.05] * 2 + [.02] * 2 + [.05, .02, .01] + [.003] * 2 + [.25] * 3 + [.05] * 3)
        take = jax.jit(jax.vmap(project, in_axes=(0, None)))
        while True:
            truth = jnp.asarray(self.rng.normal(size=(self.together, 15)) * spread, jnp.float32)
            seen = take(truth, self.points)
            yield truth, seen + self.noise * self.rng.normal(size=seen.shape).astype(np.float32)


def main():
    points = board()
    meter, errors = Meter(), []
    for number, (truth, seen) in enumerate(Photographs(points)):
        start = jnp.zeros_like(truth)
        theta, history = refine_all(start, points, seen)
        errors.append(float(jnp.median(jnp.abs(theta - truth)[:, :2])))
        if number % 50 == 0:
            print(f"group {number} residual {history[:, 0].mean():.4f} -> {history[:, -1].mean():.5f} focal error {errors[-1]:.4f}")
        if not meter.step():
            break
    print(f"median focal error {np.median(errors):.4f} over {len(errors)} groups of photographs")
    meter.report()


if __name__ == "__main__":
    main()
