// The mark of a rule that has yet to prove itself.
import type { JSX } from "preact";

export const PreviewBadge = (): JSX.Element => (
  <span class="badge" title="This rule has not been seen yet on a profile of a real program: check the evidence first.">
    preview
  </span>
);
