// Copies the link to a finding.
import type { JSX } from "preact";
import { isExported } from "../state/exported";
import { addressOf } from "../state/link";
import { captureLink } from "../state/store";
import { CopyButton } from "../widgets/code";

export function CopyLink({ captureId, id }: { captureId: string; id: string }): JSX.Element | null {
  // An exported page has no address that others can open.
  if (isExported) return null;
  const link = { ...captureLink(captureId), finding: id, base: "", target: "" };
  return <CopyButton label="Copy link" text={() => addressOf(link)} />;
}
