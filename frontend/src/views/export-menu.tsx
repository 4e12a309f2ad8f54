// The report as a file.
import type { JSX } from "preact";

const FORMATS = [
  ["markdown", "Markdown"],
  ["text", "Plain text"],
  ["json", "JSON"],
] as const;

export function ExportMenu({ urlOf }: { urlOf(format: string): string }): JSX.Element {
  return (
    <details
      class="menu"
      onKeyDown={(event) => {
        if (event.key === "Escape") event.currentTarget.open = false;
      }}
    >
      <summary>Export</summary>
      <ul>
        {FORMATS.map(([format, label]) => (
          <li key={format}>
            <a href={urlOf(format)} download={`perf-advisor.${format === "markdown" ? "md" : format === "text" ? "txt" : "json"}`}>
              {label}
            </a>
          </li>
        ))}
      </ul>
    </details>
  );
}
