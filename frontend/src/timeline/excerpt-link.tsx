// Opens the events around a finding's evidence in Perfetto, or downloads them for it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { toApiError } from "../state/answers";
import { isExported } from "../state/exported";
import { openInPerfetto } from "../state/perfetto";
import { Download } from "../widgets/download";
import { DownloadIcon, LinkIcon } from "../widgets/icons";

/** `name` is the rule's id, or what else the events are about. */
export function ExcerptLink({ href, name }: { href: string; name: string }): JSX.Element | null {
  const [problem, setProblem] = useState("");
  // An exported page has no server.
  if (isExported) return null;
  const open = async (): Promise<void> => {
    setProblem("");
    try {
      await openInPerfetto(href, `Perf Advisor: ${name}`);
    } catch (error) {
      const { message, hint } = toApiError(error);
      setProblem(`${message}. ${hint}`);
    }
  };
  return (
    <>
      <button
        type="button"
        class="button"
        title="Opens ui.perfetto.dev and hands it these events, which stay in your browser"
        onClick={() => void open()}
      >
        Open in Perfetto <LinkIcon />
      </button>
      <Download
        class="button"
        href={href}
        name={`perf-advisor-${name}.json.gz`}
        title="Download these events, with the affected time marked, to open in ui.perfetto.dev"
      >
        Perfetto trace <DownloadIcon />
      </Download>
      <span class="muted perfetto-problem" role="status">
        {problem}
      </span>
    </>
  );
}
