// Opens a comparison of the selected capture: with a suggested one, or with any other.
import type { JSX } from "preact";
import type { Capture } from "../state/answers";
import { compareLink } from "../state/store";
import { PageLink } from "../widgets/page-link";
import { captureName } from "./capture-name";
import { Menu } from "./menu";

export function CompareMenu({ selected, captures }: { selected: Capture; captures: Capture[] }): JSX.Element {
  return (
    <Menu label="Compare with…" name="compare">
      {selected.partners.map(({ id, base, target, reason }) => (
        <li key={id}>
          <PageLink to={compareLink(base, [target])}>
            {captureName(id, captures)} <span class="muted">{reason}</span>
          </PageLink>
        </li>
      ))}
      <li>
        <PageLink to={compareLink(selected.id, [])}>Another run…</PageLink>
      </li>
    </Menu>
  );
}
