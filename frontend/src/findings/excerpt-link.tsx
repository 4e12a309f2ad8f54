// Downloads the events around a finding's evidence for Perfetto.
import type { JSX } from "preact";
import { isExported } from "../state/exported";
import { DownloadIcon } from "../widgets/icons";

export function ExcerptLink({ href, ruleId }: { href: string; ruleId: string }): JSX.Element | null {
  // An exported page has no server.
  if (isExported) return null;
  return (
    <a
      class="button"
      href={href}
      download={`perf-advisor-${ruleId}.json.gz`}
      title="Download these events, with the affected time marked, to open in ui.perfetto.dev"
    >
      Perfetto trace <DownloadIcon />
    </a>
  );
}
