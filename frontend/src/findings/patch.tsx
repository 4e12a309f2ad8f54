// The patch of the user's code for a finding, and the command that proves it.
import type { JSX } from "preact";
import { captures } from "../state/store";
import type { FindingInfo } from "../report";
import { fetchPatches } from "../state/api";
import { Code, CopyButton } from "../widgets/code";
import { Fetched } from "../widgets/fetched";
import { DownloadIcon } from "../widgets/icons";
import { Prose } from "../widgets/prose";
import { Proof } from "./proof";

/** Whether a fix of the finding is mechanical, and the code is known. */
export const hasPatch = ({ remedies }: FindingInfo): boolean =>
  captures.value.state === "ready" && (captures.value.value.has_code ?? false) && remedies.some(({ fixes }) => (fixes?.length ?? 0) > 0);

export function Patch({ finding, captureId }: { finding: FindingInfo; captureId: string }): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchPatches(captureId, signal)}>
      {(patches) => {
        const found = patches.find(({ rule_id: rule, title }) => rule === finding.rule_id && title === finding.title);
        if (!found) return <p class="muted">The change for another finding covers this one.</p>;
        if (!found.patch) {
          return (
            <p class="muted">
              No patch: {[found.reason, ...found.places].join(", ")}. Make the change by hand.
            </p>
          );
        }
        return (
          <div class="patch">
            <ul>
              {found.changes.map((change) => (
                <li key={change}>
                  <code>{change}</code>
                </li>
              ))}
            </ul>
            <Code text={found.patch} language="diff" />
            <p class="button-row">
              <a
                class="button"
                href={`data:text/x-patch;charset=utf-8,${encodeURIComponent(found.patch)}`}
                download={`${finding.rule_id}.patch`}
              >
                Download the patch <DownloadIcon />
              </a>
              <CopyButton label="Copy git apply" text={() => applied(found.patch)} />
            </p>
            {found.notes.map((note) => (
              <p key={note}>
                <Prose text={`Check: ${note}`} />
              </p>
            ))}
            <h4>Prove it</h4>
            <p class="muted">Where the code is, with the path of the log directory from there:</p>
            <Code text={found.command} />
            {finding.proof && <Proof proof={finding.proof} />}
          </div>
        );
      }}
    </Fetched>
  );
}

const END = "END_OF_PATCH";

/** A command that makes the change, for a shell. */
const applied = (patch: string): string => `git apply <<'${END}'\n${patch}${patch.endsWith("\n") ? "" : "\n"}${END}\n`;
