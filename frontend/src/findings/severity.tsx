// The severity of a finding, as a word and as bars that do not depend on color.
import type { JSX } from "preact";
import type { FindingInfo } from "../report";

const WORDS: Record<FindingInfo["severity"], string> = { high: "High", medium: "Medium", low: "Low" };
const BARS: Record<FindingInfo["severity"], number> = { high: 3, medium: 2, low: 1 };

export function Severity({ severity }: { severity: FindingInfo["severity"] }): JSX.Element {
  return (
    <span class={`severity severity-${severity}`}>
      <svg viewBox="0 0 14 12" aria-hidden="true" focusable="false">
        {[0, 1, 2].map((bar) => (
          <rect
            key={bar}
            x={bar * 5}
            y={8 - bar * 4}
            width={3.5}
            height={4 + bar * 4}
            rx={1}
            opacity={bar < BARS[severity] ? 1 : 0.22}
          />
        ))}
      </svg>
      {WORDS[severity]}
    </span>
  );
}
