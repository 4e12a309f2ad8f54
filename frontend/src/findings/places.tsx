// The lines of the user's code that a finding is about, if TensorBoard was started with its directory.
import type { JSX } from "preact";
import type { Place } from "../report";
import { highlightedLines } from "../widgets/highlighted";
import { LinkIcon } from "../widgets/icons";
import { Name } from "../widgets/name";

export function Places({ places }: { places: Place[] }): JSX.Element {
  return (
    <>
      {places.map((place) => (
        <PlaceCode key={`${place.file}:${place.line}`} place={place} />
      ))}
    </>
  );
}

function PlaceCode({ place: { file, line, function: name, source } }: { place: Place }): JSX.Element {
  const at = `${source?.path ?? file}:${line}`;
  return (
    <figure class="place">
      <figcaption>
        {source?.link ? (
          <a class="place-link" href={source.link} target="_blank" rel="noopener noreferrer">
            <code><Name of={at} /></code> <LinkIcon />
          </a>
        ) : (
          <code><Name of={at} /></code>
        )}
        {name && <> in <code><Name of={name} /></code></>}
        {source?.note && <span class="muted"> ({source.note}{source.candidates.length > 0 && `: ${source.candidates.join(", ")}`})</span>}
      </figcaption>
      {source && source.lines.length > 0 && (
        <pre class="place-code" tabIndex={0} aria-label={`Code at ${at}`}>
          {highlightedLines(source.lines).map((text, index) => {
            const number = (source.first_line ?? 1) + index;
            return (
              <div key={number} class={number === line ? "place-line chosen" : "place-line"}>
                <span class="place-number">{number}</span>
                <code>{text}</code>
              </div>
            );
          })}
        </pre>
      )}
    </figure>
  );
}
