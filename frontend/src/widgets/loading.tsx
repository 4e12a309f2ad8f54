// Placeholder while something loads.
import type { JSX } from "preact";

export function Loading(): JSX.Element {
  return (
    <div class="loading" role="status">
      <span class="visually-hidden">Loading…</span>
      <span class="skeleton skeleton-title" />
      <span class="skeleton skeleton-line" />
      <span class="skeleton skeleton-card" />
    </div>
  );
}
