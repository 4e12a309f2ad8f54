// Downloads the report as a file.
import type { JSX } from "preact";
import { hasRemarks } from "../findings/remark";
import { notesUrl } from "../state/api";
import { Download } from "../widgets/download";
import { Menu } from "./menu";

const FORMATS = [
  ["html", "Page (HTML)", "html"],
  ["markdown", "Markdown", "md"],
  ["text", "Plain text", "txt"],
  ["json", "JSON", "json"],
  ["sarif", "SARIF", "sarif"],
] as const;

export function ExportMenu({ urlOf }: { urlOf(format: string): string }): JSX.Element {
  return (
    <Menu label="Export" name="export">
      {FORMATS.map(([format, label, extension]) => (
        <li key={format}>
          <Download href={urlOf(format)} name={`perf-advisor.${extension}`}>
            {label}
          </Download>
        </li>
      ))}
      {hasRemarks() && (
        <li>
          <a href={notesUrl()} download="perfadvisor.toml">
            Notes as settings (TOML)
          </a>
        </li>
      )}
    </Menu>
  );
}
