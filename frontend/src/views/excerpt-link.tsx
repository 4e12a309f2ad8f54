// A file of the events around a finding's evidence.
import type { JSX } from "preact";
import { isExported } from "../exported";
import { DownloadIcon } from "./icons";

export function ExcerptLink({ href, ruleId }: { href: string; ruleId: string }): JSX.Element | null {
  // Nobody would answer.
  if (isExported) return null;
  return (
    <a
      class="button"
      href={href}
      download={`perf-advisor-${ruleId}.json.gz`}
      title="These events with the claimed time marked, to open in ui.perfetto.dev"
    >
      For Perfetto <DownloadIcon />
    </a>
  );
}
