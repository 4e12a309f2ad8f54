// Names of kernels, operators and files, which are long and have no spaces to break lines at.
import type { JSX } from "preact";

/** Each possible line break costs layout time, so very long names get no more than this. */
const MAX_PIECES = 80;
/** Keeps `__next__` together, with no break after one of several underscores, and numbers. */
const PIECE = /.*?(?:::|(?:[/<(\-]|[.,](?!\d))+|(?<=[^_])_(?![_\s]|$)|$)/gs;

/** Splits a name where a line may break: after the separators of words in names. */
export function namePieces(name: string): string[] {
  const pieces = name.match(PIECE)?.filter(Boolean) ?? [];
  return [...pieces.slice(0, MAX_PIECES), pieces.slice(MAX_PIECES).join("")].filter(Boolean);
}

/** Room for a name, so that the other columns do not squeeze it. */
const roomFor = (name: string): { minWidth: string } => ({ minWidth: `min(${0.9 * name.length}ch, 15em)` });

export function Name({ of }: { of: string }): JSX.Element {
  return (
    <span class="name" style={roomFor(of)}>
      {namePieces(of).map((piece, index) => (
        <>
          {index > 0 && <wbr />}
          {piece}
        </>
      ))}
    </span>
  );
}

/** The namespaces of frameworks and CUDA libraries, which most kernel names repeat several times. */
const NAMESPACES =
  /\b(?:at::native::|at::detail::|at::|c10::|cub::|cutlass::|thrust::|std::|tensorflow::functor::|tensorflow::|Eigen::internal::|Eigen::)|\((?:anonymous namespace|unnamed)\)::|<unnamed>::/g;

/** A kernel's name without its return type and namespaces, for narrow columns. */
export const shortKernelName = (name: string): string =>
  /[<(]/.test(name) ? name.replace(/^void /, "").replace(NAMESPACES, "") : name;

/** A long name, shortened to at most two lines; the tooltip has all of it. */
export function LongName({ name, isWhole = false }: { name: string; isWhole?: boolean }): JSX.Element {
  const short = shortKernelName(name);
  return isWhole ? (
    <Name of={name} />
  ) : (
    <span class="clamped long-name" title={name} style={roomFor(short)}>
      <Name of={short} />
    </span>
  );
}
