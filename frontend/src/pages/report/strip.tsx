// Where the time of a step goes, on one strip: a bar of causes, its legend, and the first key numbers.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { type Block, blocksOf, drawBreakdownBar } from "../../charts/breakdown-bar";
import { causeColor } from "../../charts/colors";
import { PlotFigure } from "../../charts/plot-figure";
import { mayAct } from "../../findings/list";
import { formatDuration, formatDurationRange, formatShare } from "../../format";
import type { KeyNumber, Report } from "../../report";
import { chooseCause, chosenCause } from "../../state/chosen-cause";
import { useFlags } from "../../state/linked";
import { ChevronIcon } from "../../widgets/icons";
import { Tile } from "./key-numbers";

/** With the step after all changes, there are four numbers. */
const NUMBERS = 4;

/** The first key numbers that are known. */
export const numbersOnStrip = (report: Report): KeyNumber[] =>
  report.key_numbers.filter(({ value }) => value !== null).slice(0, potentialOf(report) ? NUMBERS - 1 : NUMBERS);

export function Strip({ report }: { report: Report }): JSX.Element {
  const potential = potentialOf(report);
  // Of what the compiler did, only the compilations were recorded.
  const hasCauses = report.overview.window_ns > 0 && !report.formats.includes("torch-compile-log");
  return (
    <section class="card strip" aria-labelledby="strip">
      {hasCauses ? (
        <Breakdown report={report} />
      ) : (
        <h2 id="strip" class="visually-hidden">
          Key numbers
        </h2>
      )}
      <dl class="strip-numbers">
        {numbersOnStrip(report).map((number) => (
          <Tile key={number.id} isShort {...number} />
        ))}
        {potential && (
          <div class="tile">
            <dt>With all changes</dt>
            <dd>
              <span class="tile-value">{potential.duration}</span>
              <span class="tile-note">{potential.saving}</span>
            </dd>
          </div>
        )}
      </dl>
    </section>
  );
}

/** The step time with all changes made. */
function potentialOf(report: Report): { duration: string; saving: string } | null {
  const { combined_saving: saving, overview } = report;
  if (!saving || saving.expected_ns <= 0 || !mayAct(report)) return null;
  const stepNs = overview.step_time_ns ?? overview.window_ns;
  return {
    duration: formatDuration(stepNs - saving.expected_ns),
    saving: `saves ${formatDurationRange(saving.low_ns, saving.high_ns)}`,
  };
}

function Breakdown({ report }: { report: Report }): JSX.Element {
  const { overview } = report;
  const chosen = chosenCause.value;
  const steps = Math.max(overview.steps, 1);
  const [isOpen, setOpen] = useFlags("open");
  const blocks = blocksOf(overview.breakdown);
  const isOpened = ({ key, parts }: Block): boolean => isOpen(key, false) || parts.some((part) => part.key === chosen);
  const shown = blocks.flatMap((block) => (block.parts.length > 0 && isOpened(block) ? block.parts : [block]));
  const act = (block: Block): void => {
    if (block.parts.length > 0) setOpen(block.key, !isOpened(block), false);
    else chooseCause(chosen === block.key ? null : block.key);
  };
  const draw = useCallback(
    (width: number) => drawBreakdownBar(shown, steps, width, chosen),
    [report, chosen, shown.map(({ key }) => key).join()],
  );
  const stepTime = formatDuration(overview.step_time_ns ?? overview.window_ns);
  return (
    <div class="breakdown">
      <h2 id="strip" class="visually-hidden">
        Where {overview.step_time_ns === null ? `the ${stepTime} analyzed` : `a ${stepTime} step`} goes
      </h2>
      <PlotFigure
        class="breakdown-bar"
        label="Step time by cause; the list below has the same numbers."
        draw={draw}
        onPick={(picked) => act(picked as Block)}
      />
      <ul class="legend">
        {blocks.map((block) => (
          <LegendEntry key={block.key} block={block} steps={steps} isOpen={block.parts.length > 0 ? isOpened(block) : null} act={act}>
            {isOpened(block) && block.parts.map((part) => <LegendEntry key={part.key} block={part} steps={steps} isOpen={null} act={act} />)}
          </LegendEntry>
        ))}
      </ul>
      <Costliest report={report} />
    </div>
  );
}

interface EntryProps {
  block: Block;
  steps: number;
  /** Whether a block shows its parts; null for a cause. */
  isOpen: boolean | null;
  act(block: Block): void;
  children?: (JSX.Element | false)[] | false;
}

function LegendEntry({ block, steps, isOpen, act, children }: EntryProps): JSX.Element {
  const state = isOpen === null ? { "aria-pressed": block.key === chosenCause.value } : { "aria-expanded": isOpen };
  const title = `${formatShare(block.share)}: show its ${isOpen === null ? "findings and events" : "parts"}`;
  return (
    <>
      <li>
        <button type="button" {...state} title={title} onClick={() => act(block)}>
          <span class="swatch" style={{ background: causeColor(block.color) }} aria-hidden="true" />
          <span>{block.label}</span>
          {isOpen !== null && <ChevronIcon />}
          <span class="muted">{formatDuration(block.total_ns / steps)}</span>
          <span class="visually-hidden">{formatShare(block.share)}</span>
        </button>
      </li>
      {children}
    </>
  );
}

/** What takes half of the time, by name, and how near that is to what it can reach. */
function Costliest({ report }: { report: Report }): JSX.Element | null {
  const { costliest = [] } = report.overview;
  if (costliest.length === 0) return null;
  return (
    <p class="costliest muted">
      Most of the time:{" "}
      {costliest.map(({ name, place, is_idle: isIdle, share, achieved_share: achieved }, at) => (
        <span key={`${name} ${isIdle}`} title={place}>
          {at > 0 && ", "}
          <code>{name}</code> {formatShare(share)}
          {isIdle && " idle"}
          {achieved !== null && ` (at ${formatShare(Math.min(achieved, 1))} of achievable rate)`}
          {place && ` at ${place}`}
        </span>
      ))}
    </p>
  );
}
