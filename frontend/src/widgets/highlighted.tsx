// Python with syntax colors, as elements and never as HTML.
import type { JSX } from "preact";
import { type ParsedToken, parse } from "sugar-high/core";
import * as python from "sugar-high/lang/python";

/** The lexer calls numbers, `True` and names of classes by one name. */
const COLORED = new Set<ParsedToken["type"]>(["keyword", "string", "comment", "class"]);
const OPENING = new Set(["(", "[", "{"]);
const CLOSING = new Set([")", "]", "}"]);

interface Props {
  text: string;
  /** Whether to mark the arguments that the code sets, such as `num_workers=4`. */
  marksArguments?: boolean;
}

export function Highlighted({ text, marksArguments = false }: Props): JSX.Element {
  return (
    <>
      {parse(text, python).lines.map(({ tokens }, index) => (
        <>
          {index > 0 && "\n"}
          {marksArguments ? splitArguments(tokens).map(drawPart) : tokens.map(drawToken)}
        </>
      ))}
    </>
  );
}

/** The lines of an excerpt. A string may span several of them. */
export const highlightedLines = (lines: string[]): JSX.Element[] =>
  parse(lines.join("\n"), python).lines.map(({ tokens }) => <>{tokens.map(drawToken)}</>);

/** A unified diff of Python files: lines that come and go are marked. */
export function Diff({ text }: { text: string }): JSX.Element {
  return (
    <>
      {text.split("\n").map((line, index) => {
        const kind = /^(---|\+\+\+|@@|diff )/.test(line) ? "head" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same";
        return (
          <>
            {index > 0 && "\n"}
            <span class={`diff-${kind}`}>{kind === "head" ? line : [line.slice(0, 1), ...highlightedLines([line.slice(1)])]}</span>
          </>
        );
      })}
    </>
  );
}

const drawToken = ({ type, value }: ParsedToken): JSX.Element | string =>
  COLORED.has(type) ? <span class={`code-${type}`}>{value}</span> : value;

const drawPart = ({ isArgument, tokens }: Part): JSX.Element =>
  isArgument ? <mark>{tokens.map(drawToken)}</mark> : <>{tokens.map(drawToken)}</>;

interface Part {
  isArgument: boolean;
  tokens: ParsedToken[];
}

/** A line's tokens, with each argument that gets a value of its own as a part. */
export function splitArguments(tokens: readonly ParsedToken[]): Part[] {
  const parts: Part[] = [];
  for (let at = 0; at < tokens.length; ) {
    const end = argumentEnd(tokens, at);
    const isArgument = end > at;
    const last = parts.at(-1);
    if (isArgument || last === undefined || last.isArgument) {
      parts.push({ isArgument, tokens: tokens.slice(at, Math.max(end, at + 1)) });
    } else {
      last.tokens.push(tokens[at] as ParsedToken);
    }
    at = Math.max(end, at + 1);
  }
  return parts;
}

/** Where the argument that begins at a token ends; at the token if none does. */
function argumentEnd(tokens: readonly ParsedToken[], at: number): number {
  const [name, sign, first] = tokens.slice(at, at + 3);
  // Arguments have no spaces around the sign, unlike assignments and comparisons.
  if (name?.type !== "identifier" || sign?.value !== "=" || !first || first.type === "space" || first.value === "=") {
    return at;
  }
  let end = at + 2;
  let depth = 0;
  for (; end < tokens.length; end += 1) {
    const { value, type } = tokens[end] as ParsedToken;
    if (type === "comment" || (depth === 0 && (value === "," || CLOSING.has(value)))) break;
    if (OPENING.has(value)) depth += 1;
    if (CLOSING.has(value)) depth -= 1;
  }
  // `batch_size=batch_size` passes on what was there before.
  const isPassedOn = end === at + 3 && first.type === "identifier";
  return isPassedOn ? at : end;
}
