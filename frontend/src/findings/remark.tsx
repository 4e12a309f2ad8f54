// What the user says about a finding: that it stays as it is, and why.
import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import type { FindingInfo, RemarkInfo } from "../report";
import { toApiError } from "../state/answers";
import { sendRemark } from "../state/api";
import { isExported } from "../state/exported";
import { captures, report, showRemark } from "../state/store";

const MOST_CHARACTERS = 1000;

/** Whether the user decided against a finding. */
export const isSetAside = ({ remark }: Pick<FindingInfo, "remark">): boolean => remark?.wont_fix ?? false;

/** Whether the user decided against a finding, or against the general one that it refines. */
export const isAside = (findings: readonly FindingInfo[], finding: FindingInfo): boolean =>
  isSetAside(finding) || findings.some((general) => general.rule_id === finding.refines && isSetAside(general));

/** In the row of the finding. */
export function RemarkLine({ remark }: { remark: RemarkInfo }): JSX.Element {
  return (
    <span class="remark">
      {remark.wont_fix && <span class="badge">won’t fix</span>} {remark.text}
    </span>
  );
}

/** Whether this server keeps notes. */
export const canWriteRemark = (): boolean =>
  !isExported && captures.value.state === "ready" && captures.value.value.allows_notes === true;

/** Which flag of TensorBoard lets this page write notes, where it cannot. */
export const remarkHint = (): string =>
  !isExported && captures.value.state === "ready" ? (captures.value.value.notes_hint ?? "") : "";

interface Props {
  id: string;
  finding: FindingInfo;
  captureId: string;
}

export function RemarkForm({ id, finding, captureId }: Props): JSX.Element {
  const [wontFix, setWontFix] = useState(isSetAside(finding));
  const [text, setText] = useState(finding.remark?.text ?? "");
  const [problem, setProblem] = useState("");
  const [isSaving, setSaving] = useState(false);
  const field = useId();
  const isSaved = wontFix === isSetAside(finding) && text.trim() === (finding.remark?.text ?? "");
  const save = async (event: Event): Promise<void> => {
    event.preventDefault();
    setSaving(true);
    setProblem("");
    try {
      const remark = await sendRemark(captureId, id, { wont_fix: wontFix, text });
      setText(remark.text);
      await showRemark(captureId);
    } catch (error) {
      const { message, hint } = toApiError(error);
      setProblem(`${message} ${hint}`);
    }
    setSaving(false);
  };
  return (
    <form class="remark-form" onSubmit={(event) => void save(event)}>
      <label>
        <input type="checkbox" checked={wontFix} onChange={({ currentTarget }) => setWontFix(currentTarget.checked)} /> Won’t
        fix
      </label>
      <label for={field} class="visually-hidden">
        Note
      </label>
      <textarea
        id={field}
        rows={2}
        maxLength={MOST_CHARACTERS}
        placeholder="A sentence for whoever reads this next"
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
      />
      <button type="submit" disabled={isSaved || isSaving}>
        {isSaved && finding.remark ? "Saved" : "Save"}
      </button>
      {problem && <p role="alert">{problem}</p>}
      <p class="muted">Kept in your data directory, for all recordings of this run.</p>
    </form>
  );
}

/** Whether the report on screen has notes, so that they can be exported. */
export const hasRemarks = (): boolean =>
  report.value.state === "ready" && report.value.value.findings.some(({ remark }) => remark);
