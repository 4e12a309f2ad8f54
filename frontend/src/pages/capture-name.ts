// The name of a capture among others.
import type { Capture } from "../state/answers";
import { sessionName } from "../text";

/** Its run, and its session if the run was recorded several times. */
export function captureName(id: string, captures: Capture[]): string {
  const capture = captures.find((candidate) => candidate.id === id);
  if (!capture) return id;
  const isOnly = captures.filter(({ run }) => run === capture.run).length === 1;
  const name = capture.run || ".";
  return isOnly ? name : `${name} · ${sessionName(capture.session)}`;
}
