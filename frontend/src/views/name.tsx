// Names of kernels, operators and files: long, and without spaces to break a line at.
import type { JSX } from "preact";

/** A browser asks of each piece whether the line ends there; nobody reads further than this. */
const MOST_PIECES = 80;
/** Not within `__next__`: an underscore that follows or precedes another begins or ends a word. */
const PIECE = /.*?(?:::|[/.,<(\-]+|(?<=[^_])_(?![_\s]|$)|$)/gs;

/** Pieces between which a line may break: after what separates words in names. */
export function namePieces(name: string): string[] {
  const pieces = name.match(PIECE)?.filter(Boolean) ?? [];
  return [...pieces.slice(0, MOST_PIECES), pieces.slice(MOST_PIECES).join("")].filter(Boolean);
}

export function Name({ of }: { of: string }): JSX.Element {
  return (
    <span class="name" style={{ minWidth: `min(${0.9 * of.length}ch, 15em)` }}>
      {namePieces(of).map((piece, index) => (
        <>
          {index > 0 && <wbr />}
          {piece}
        </>
      ))}
    </span>
  );
}
