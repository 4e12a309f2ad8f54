// Copies the link to what is on screen, and a summary of the report.
import type { JSX } from "preact";
import { addressWith } from "../state/host";
import { chosenFinding, page, report, selectedId } from "../state/store";
import { summaryOf } from "../summary";
import { CopyButton } from "../widgets/code";
import { Menu } from "./menu";

/** The menu stays open, to say that something was copied. */
const stayOpen = (event: Event): void => event.stopPropagation();

/** The address with what it leaves open: the only capture, and the finding that is open at first. */
function address(): string {
  const finding = page.value === "report" ? chosenFinding.value : null;
  return addressWith({ ...(selectedId.value ? { capture: selectedId.value } : {}), ...(finding ? { finding } : {}) });
}

export function ShareMenu(): JSX.Element {
  const current = report.value;
  return (
    <Menu label="Share" name="share">
      <li onClick={stayOpen}>
        <CopyButton label="Copy link" text={address} />
      </li>
      {current.state === "ready" && (
        <li onClick={stayOpen}>
          <CopyButton label="Copy summary" text={() => summaryOf(current.value, address())} />
        </li>
      )}
    </Menu>
  );
}
