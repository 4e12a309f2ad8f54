// What the colors of a chart stand for.
import type { ComponentChildren, JSX } from "preact";

export const Legend = ({ entries, children }: { entries: [color: string, label: string][]; children?: ComponentChildren }): JSX.Element => (
  <ul class="legend-row">
    {entries.map(([color, label]) => (
      <li key={label}>
        <span class="swatch" style={{ background: color }} aria-hidden="true" /> {label}
      </li>
    ))}
    {children}
  </ul>
);
