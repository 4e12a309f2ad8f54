// Key numbers with their definitions. An unknown number is "unknown", never 0.
import type { JSX } from "preact";
import { formatCell, UNKNOWN } from "../../format";
import type { KeyNumber } from "../../report";
import { Definition } from "../../widgets/definition";

const VERDICTS = { good: "Good", fair: "Fair", poor: "Poor" };
/** More numbers take two rows of about equal length. */
const MOST_IN_A_ROW = 6;

/** The numbers that are not on the strip. */
export function KeyNumbers({ numbers }: { numbers: KeyNumber[] }): JSX.Element | null {
  if (numbers.length === 0) return null;
  const columns = numbers.length > MOST_IN_A_ROW ? Math.ceil(numbers.length / 2) : numbers.length;
  return (
    <section class="key-numbers" aria-labelledby="key-numbers">
      <div class="section-head">
        <h2 id="key-numbers">More numbers</h2>
      </div>
      <dl class="tiles" style={{ "--columns": columns }}>
        {numbers.map((number, index) => (
          <Tile key={number.id} isLast={(index + 1) % columns === 0} {...number} />
        ))}
      </dl>
    </section>
  );
}

interface TileProps extends KeyNumber {
  /** Whether only the verdict of a reference is shown. */
  isShort?: boolean;
  /** Whether it is at the right edge. */
  isLast?: boolean;
}

export function Tile({ label, value, unit, of, notes, share, reference, definition, isShort = false, isLast = false }: TileProps): JSX.Element {
  const lines = [...(of ? [`of ${of}`] : []), ...notes];
  return (
    <div class={isLast ? "tile tile-last" : "tile"}>
      <dt>
        {label} <Definition of={label} text={definition} />
      </dt>
      <dd>
        <span class={value === null ? "tile-absent" : "tile-value"}>
          {value === null ? UNKNOWN : formatCell(value, unit)}
        </span>
        {lines.length > 0 && <span class="tile-note">{lines.join("\n")}</span>}
        {reference && (
          <a class={`tile-reference reference-${reference.verdict}`} href={reference.url} target="_blank" rel="noreferrer" title={isShort ? reference.text : reference.source}>
            {VERDICTS[reference.verdict]}
            <span class={isShort ? "visually-hidden" : ""}>: {reference.text}</span>
          </a>
        )}
        {share !== null && (
          <span class="meter" aria-hidden="true">
            <span style={{ width: `${Math.min(Math.max(share, 0), 1) * 100}%` }} />
          </span>
        )}
      </dd>
    </div>
  );
}
