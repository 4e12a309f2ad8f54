// Whether there are events to draw: files that hold sums have none.
import type { Report } from "../report";

export const hasTimeline = ({ overview, workers }: Report): boolean =>
  overview.window_ns > 0 && workers.some(({ events }) => events > 0);
