// Marks a rule in preview.
import type { JSX } from "preact";

export const PreviewBadge = (): JSX.Element => (
  <span class="badge" title="This rule has not yet fired on a profile of a real program. Check its evidence before acting on it.">
    preview
  </span>
);
