// Arrows between the chosen event and those that it comes from and leads to.
import type { EventInfo, LinkedEvent } from "../state/answers";

export interface Arrow {
  from: { row: number; atNs: number };
  to: { row: number; atNs: number };
}

/** How a link reads beside the event that is chosen. */
export const LINK_LABELS: Record<LinkedEvent["link"], string> = {
  launch: "Launched by",
  operator: "Operator",
  forward: "Forward",
  work: "Device work",
  backward: "Backward",
};

/** The end of an arrow at an event: its end if it is over before the other begins, else its start. */
const leaving = (event: EventInfo, other: EventInfo): number => {
  const endNs = event.start_ns + event.duration_ns;
  return endNs <= other.start_ns ? endNs : event.start_ns;
};

/** The arrows of an event. Its operator on the same thread is around it already. */
export function arrowsOf(event: EventInfo | null): Arrow[] {
  if (!event?.linked) return [];
  const launch = event.linked.find(({ link }) => link === "launch");
  return event.linked.flatMap((other): Arrow[] => {
    // From the operator to the call that launches: the launch's own arrow leads on.
    if (other.link === "operator") return launch ? [arrow(other, launch)] : [];
    const leads = other.link === "work" || other.link === "backward";
    return [leads ? arrow(event, other) : arrow(other, event)];
  });
}

const arrow = (from: EventInfo, to: EventInfo): Arrow => ({
  from: { row: from.row, atNs: leaving(from, to) },
  to: { row: to.row, atNs: to.start_ns },
});
