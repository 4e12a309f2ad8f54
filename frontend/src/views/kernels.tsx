export const Kernels = (_: Record<string, unknown>) => <p>kernels</p>;
