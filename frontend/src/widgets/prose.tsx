// Renders text of reports and rule pages as elements, and never as HTML.
import type { ComponentChildren, JSX } from "preact";
import { Highlighted } from "./highlighted";

/** Keeps a number and its unit on one line. */
export const keepUnits = (text: string): string =>
  text.replace(/(\d) (?=(?:%|[nµm]?s|[KMGTP]iB|[kMGTP]?(?:B(?:\/s)?|FLOP\/s))(?![\w/]))/g, "$1\u00a0");

/** A sentence, with `code` in backticks. */
export function Prose({ text }: { text: string }): JSX.Element {
  const parts = keepUnits(text).split(/`([^`]+)`/);
  return <>{parts.map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

const INLINE = /(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*|\[[^\]]+\]\(https?:\/\/[^)\s]+\))/;

/** A line of Markdown: code, strong, emphasis, web links. */
function Line({ text }: { text: string }): JSX.Element {
  return <>{keepUnits(text).split(INLINE).map(readInline)}</>;
}

function readInline(part: string, index: number): ComponentChildren {
  if (index % 2 === 0) return part;
  if (part.startsWith("`")) return <code key={index}>{part.slice(1, -1)}</code>;
  if (part.startsWith("**")) return <strong key={index}>{part.slice(2, -2)}</strong>;
  if (part.startsWith("*")) return <em key={index}>{part.slice(1, -1)}</em>;
  const [label = "", address = ""] = part.slice(1, -1).split("](");
  return (
    <ExternalLink key={index} href={address}>
      {label}
    </ExternalLink>
  );
}

export function ExternalLink(props: { href: string; children: ComponentChildren }): JSX.Element {
  // Other schemes could run a script.
  if (!/^https?:\/\//i.test(props.href)) return <>{props.children}</>;
  return (
    <a href={props.href} target="_blank" rel="noopener noreferrer">
      {props.children}
    </a>
  );
}

/** The Markdown that rule pages use: headings, paragraphs, lists, fenced code, plain tables. */
export function Markdown({ text }: { text: string }): JSX.Element {
  return <div class="prose">{readBlocks(text).map((block, index) => block(index))}</div>;
}

type Block = (key: number) => JSX.Element;

function readBlocks(text: string): Block[] {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks: Block[] = [];
  let at = 0;
  const take = (matches: (line: string) => boolean): string[] => {
    const from = at;
    while (at < lines.length && matches(lines[at] as string)) at += 1;
    return lines.slice(from, at);
  };
  while (at < lines.length) {
    const line = lines[at] as string;
    const heading = /^#{1,6}\s+(.*)$/.exec(line);
    if (line.trim() === "") {
      at += 1;
    } else if (line.startsWith("```")) {
      at += 1;
      const code = take((other) => !other.startsWith("```")).join("\n");
      at += 1;
      const content = line === "```python" ? <Highlighted text={code} /> : code;
      blocks.push((key) => <pre key={key} tabIndex={0}><code>{content}</code></pre>);
    } else if (heading) {
      at += 1;
      blocks.push((key) => <h2 key={key}><Line text={heading[1] ?? ""} /></h2>);
    } else if (/^\s*[-*]\s/.test(line)) {
      const items = joinItems(take((other) => /^\s*[-*]\s/.test(other) || /^\s+\S/.test(other)));
      blocks.push((key) => <ul key={key}>{items.map((item) => <li><Line text={item} /></li>)}</ul>);
    } else if (line.startsWith("|")) {
      const rows = take((other) => other.startsWith("|"));
      blocks.push((key) => <MarkdownTable key={key} rows={rows} />);
    } else {
      const paragraph = take((other) => other.trim() !== "" && !/^(#|```|\||\s*[-*]\s)/.test(other));
      if (paragraph.length === 0) at += 1;
      blocks.push((key) => <p key={key}><Line text={paragraph.join(" ") || line} /></p>);
    }
  }
  return blocks;
}

function joinItems(lines: string[]): string[] {
  const items: string[] = [];
  for (const line of lines) {
    const start = /^\s*[-*]\s+(.*)$/.exec(line);
    if (start) items.push(start[1] ?? "");
    else items.push(`${items.pop() ?? ""} ${line.trim()}`);
  }
  return items;
}

function MarkdownTable({ rows }: { rows: string[] }): JSX.Element {
  const cells = rows
    .filter((row) => !/^[|\s:-]+$/.test(row))
    .map((row) => row.replace(/^\||\|\s*$/g, "").split("|").map((cell) => cell.trim()));
  const [head = [], ...body] = cells;
  return (
    <div class="table-scroll">
      <table>
        <thead><tr>{head.map((cell) => <th scope="col"><Line text={cell} /></th>)}</tr></thead>
        <tbody>{body.map((row) => <tr>{row.map((cell) => <td><Line text={cell} /></td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}
